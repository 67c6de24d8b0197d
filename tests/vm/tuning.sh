# tuning on a host that has only a kernel.

pair='{"cniVersion": "1.1.0", "name": "net", "type": "veth"}'
tuning='{"cniVersion": "1.1.0", "name": "net", "type": "tuning", "mac": "02:00:00:00:00:AA", "mtu": 1400, "promisc": true,
    "allmulti": true, "txQLen": 77, "sysctl": {"net.ipv4.conf.IFNAME.arp_notify": "1", "net.core.somaxconn": "0x4d"}}'

tuned() {
    at c1 sh -c 'cd /sys/class/net/eth0; cat address mtu flags tx_queue_len
        cat /proc/sys/net/ipv4/conf/eth0/arp_notify /proc/sys/net/core/somaxconn' | xargs
}

test_everything_is_tuned_and_put_back() {
    container c1
    remember
    add veth c1 "$pair"
    before=$(tuned)
    add tuning c1 "$tuning"
    same "02:00:00:00:00:aa 1400 0x1303 77 1 77" "$(tuned)"
    said_contains '"mac": "02:00:00:00:00:aa"'
    check tuning c1 "$tuning"
    add tuning c1 "$tuning"
    at c1 ip link set eth0 mtu 1399
    expect_fail 999 CHECK tuning c1 "$tuning"
    said_contains 'has MTU 1399, not 1400'
    del tuning c1 "$tuning"
    same "$before" "$(tuned)"
    del tuning c1 "$tuning"
    del veth c1 "$pair"
    nothing_changed
}

test_gc_removes_only_stale_files_of_its_network() {
    container c1 c2
    add veth c1 "$pair"
    add tuning c1 "$tuning"
    add veth c2 "$pair"
    add tuning c2 "$tuning"
    destroy c1
    gc tuning "$tuning" c2
    same c2_eth0.json "$(ls /run/cni/tuning)"
}
