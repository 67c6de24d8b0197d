# veth on a host that has only a kernel.

dual_stack='{"cniVersion": "1.1.0", "name": "net", "type": "veth", "ipMasq": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}'

test_containers_reach_each_other_the_host_and_the_outside() {
    outside internet 192.0.2.1/24 192.0.2.2/24 2001:db8::1/64 2001:db8::2/64
    serve internet 80
    container c1 c2
    remember
    add veth c1 "$dual_stack"
    add veth c2 "$dual_stack"
    reaches c1 10.1.0.3
    reaches c2 fd00:1::2
    reaches c1 10.1.0.1
    reaches c1 fd00:1::1
    fetches c1 http://192.0.2.2/ internet
    fetches c2 'http://[2001:db8::2]/' internet
    same "192.0.2.1 2001:db8::1" "$(peers internet | xargs)"
    check veth c1 "$dual_stack"
    del veth c1 "$dual_stack"
    destroy c2
    gc veth "$dual_stack"
    nothing_changed
}

test_without_ipam_it_is_a_plain_pair() {
    container c1
    add veth c1 '{"cniVersion": "1.1.0", "name": "net", "type": "veth", "mtu": 1400}'
    same 1400 "$(at c1 cat /sys/class/net/eth0/mtu)"
    same 1 "$(at c1 cat /sys/class/net/eth0/carrier)"
    same '' "$(address_of c1 eth0)"
}
