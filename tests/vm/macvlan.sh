# macvlan on a host that has only a kernel. The rest is in tests/it/macvlan.

lan() {
    outside lan 10.1.0.253/24 10.1.0.254/24 fd00:1::fd/64 fd00:1::fe/64
}

dual_stack='{"cniVersion": "1.1.0", "name": "net", "type": "macvlan", "master": "lan",
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}}'

test_containers_reach_each_other_and_outside() {
    lan
    container c1 c2
    remember
    for name in c1 c2; do
        add macvlan $name "$dual_stack"
        check macvlan $name "$dual_stack"
        reaches $name 10.1.0.254
        reaches $name fd00:1::fe
    done
    reaches lan 10.1.0.2
    reaches c1 10.1.0.3
    reaches c1 fd00:1::3
    never_reaches host 10.1.0.2
    for name in c1 c2 c1; do
        del macvlan $name "$dual_stack"
    done
    nothing_changed
}
