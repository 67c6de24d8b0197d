# loopback on a host that has only a kernel.

test_a_container_reaches_itself() {
    local config='{"cniVersion": "1.1.0", "name": "lo", "type": "loopback"}'
    container c1
    never_reaches c1 127.0.0.1
    ifname=lo add loopback c1 "$config"
    reaches c1 127.0.0.1
    reaches c1 ::1
    ifname=lo check loopback c1 "$config"
    ifname=lo del loopback c1 "$config"
    never_reaches c1 127.0.0.1
}
