# bandwidth on a host that has only a kernel; this one has fq_codel.

network='{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}}'

# 8 Mbit/s are 1 MB in a second.
limits() {
    echo '{"cniVersion": "1.1.0", "name": "net", "type": "bandwidth",
        "ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 8000000, "egressBurst": 800000'"$1"'}'
}

# tenths FROM TO ADDRESS: how many tenths of a second 3 MB take, from FROM at its ADDRESS.
tenths() {
    local began ended
    mkdir -p /tmp/www
    dd if=/dev/zero of=/tmp/www/file bs=1000 count=3000 2>/dev/null
    at "$1" httpd -p 9000 -h /tmp/www
    began=$(cut -d ' ' -f 1 /proc/uptime)
    at "$2" timeout 20 wget -q -O /tmp/received "http://$3:9000/file"
    ended=$(cut -d ' ' -f 1 /proc/uptime)
    same "$(wc -c </tmp/received)" 3000000
    echo "$began $ended" | awk '{ printf "%d", ($2 - $1) * 10 }'
}

# Between 2.5 and 4 seconds, in tenths: the burst saves a tenth of a second, and an emulated machine is slow.
keeps_to_the_rate() {
    local took
    took=$(tenths "$@")
    [ "$took" -ge 25 ] || fail "3 MB took only $took tenths of a second"
    [ "$took" -le 45 ] || fail "3 MB took $took tenths of a second"
}

test_rates_are_kept_to_in_both_directions() {
    container c1
    add bridge c1 "$network"
    add bandwidth c1 "$(limits '')"
    keeps_to_the_rate host c1 10.1.0.1
    keeps_to_the_rate c1 host 10.1.0.2
    check bandwidth c1 "$(limits '')"
    del bandwidth c1 "$(limits '')"
    [ -z "$(ls /sys/class/net | grep bwp)" ] || fail "an ifb is left"
}

test_flows_take_turns_inside_of_the_rate() {
    container c1
    add bridge c1 "$network"
    add bandwidth c1 "$(limits ', "fairQueue": true')"
    keeps_to_the_rate host c1 '[fd00:1::1]'
    keeps_to_the_rate c1 host '[fd00:1::2]'
    check bandwidth c1 "$(limits ', "fairQueue": true')"
    destroy c1
    gc bandwidth "$(limits '')"
    [ -z "$(ls /sys/class/net | grep bwp)" ] || fail "an ifb is left"
}

machine_status_says_what_the_kernel_lacks() {
    local module modprobe part
    part=$(limits ', "shapedSubnets": ["10.0.0.0/8"]')
    status bandwidth "$(limits '')"
    status bandwidth "$part"
    [ -z "$(ls /sys/class/net | grep -e bwp -e ifb -e probe)" ] || fail "STATUS has left an ifb"
    # The kernel is not to fetch them again by itself.
    modprobe=$(cat /proc/sys/kernel/modprobe)
    echo /none >/proc/sys/kernel/modprobe
    for module in ifb sch_tbf sch_htb; do rmmod $module; done
    expect_fail 50 STATUS bandwidth '' "$(limits '')"
    said_contains 'cannot use queueing discipline tbf'
    expect_fail 50 STATUS bandwidth '' "$part"
    said_contains 'cannot use queueing discipline htb'
    modprobe -a sch_tbf sch_htb
    expect_fail 50 STATUS bandwidth '' "$(limits '')"
    said_contains CONFIG_IFB
    # Nothing comes out of this one through an ifb.
    status bandwidth '{"cniVersion": "1.1.0", "name": "net", "type": "bandwidth", "ingressRate": 8000, "ingressBurst": 8000}'
    modprobe ifb
    echo "$modprobe" >/proc/sys/kernel/modprobe
    status bandwidth "$(limits '')"
}
