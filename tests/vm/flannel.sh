# flannel on a host that has nothing but a kernel; its daemon is played by a file.

flannel='{"cniVersion": "1.1.0", "name": "cbr0", "type": "flannel", "delegate": {"isDefaultGateway": true, "hairpinMode": true}}'

daemon() {
    mkdir -p /run/flannel
    cat >/run/flannel/subnet.env <<-ENV
	FLANNEL_NETWORK=10.42.0.0/16
	FLANNEL_SUBNET=10.42.1.1/24
	FLANNEL_IPV6_NETWORK=fd00:42::/56
	FLANNEL_IPV6_SUBNET=fd00:42:0:1::1/64
	FLANNEL_MTU=1400
	FLANNEL_IPMASQ=false
	ENV
}

test_pods_reach_each_other_and_the_outside() {
    daemon
    outside internet 192.0.2.1/24 192.0.2.2/24 fd02::1/64 fd02::2/64
    container c1 c2
    for name in c1 c2; do add flannel $name "$flannel"; done
    reaches c1 10.42.1.3
    reaches c1 fd00:42:0:1::3
    reaches c1 192.0.2.2
    reaches c1 fd02::2
    same "$(at c1 cat /sys/class/net/eth0/mtu)" 1400
    check flannel c1 "$flannel"
    rm /run/flannel/subnet.env
    del flannel c1 "$flannel"
    destroy c2
    gc flannel "$flannel"
    same "$(ls /var/lib/cni/flannel)" ''
    same "$(ls /var/lib/cni/networks/cbr0 | grep -c '^10\.' || true)" 0
}

test_status_tells_whether_the_daemon_is_there() {
    expect_fail 50 STATUS flannel - "$flannel"
    daemon
    status flannel "$flannel"
}
