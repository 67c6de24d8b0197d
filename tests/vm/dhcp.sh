# dhcp on a host that has only a kernel, with busybox's udhcpd as the server. The rest is in tests/it/dhcp.

# The namespace `lan`, and the server there on its link $1, eth0 by default. Leases are renewed after 2 s.
lan() {
    outside lan 10.1.0.253/24 10.1.0.254/24
    ip addr flush dev lan
}

server() {
    printf '%s\n' 'start 10.1.0.20' 'end 10.1.0.22' 'max_leases 3' "interface ${1-eth0}" 'lease_file /tmp/leases' \
        'pidfile /tmp/udhcpd.pid' 'auto_time 0' 'min_lease 1' 'opt subnet 255.255.255.0' 'opt router 10.1.0.254' \
        'opt lease 600' 'opt 0x3a 00000002' 'opt 0x3b 00000010' >/tmp/udhcpd.conf
    touch /tmp/leases
    nsenter --net=/run/netns/lan udhcpd -f /tmp/udhcpd.conf >>/tmp/udhcpd.log 2>&1 &
    server=$!
}

# The daemon, when it listens.
daemon() {
    "$cni_bin/dhcp" daemon -timeout 2s -resendmax 4s -resendtimeout 20s >>/tmp/daemon.log 2>&1 &
    daemon=$!
    eventually grep -q ' /run/cni/dhcp.sock$' /proc/net/unix
}

# stop PID
stop() {
    kill -9 "$1"
    wait "$1" || true
}

# renewed TIMES: the server gives an address so many times more.
renewed() {
    local count
    count=$(($(acks) + $1))
    eventually has_acks "$count"
}

acks() {
    grep -c 'sending ACK' /tmp/udhcpd.log || true
}

has_acks() {
    [ "$(acks)" -ge "$1" ]
}

# The lines of the server's table; it writes them when it gets the signal.
leases() {
    kill -USR1 "$server"
    usleep 100000
    dumpleases -f /tmp/leases | sed 1d
}

released() {
    leases | grep 'expired' && not_leased
}

not_leased() {
    ! leases | grep -v 'expired'
}

# keeps_its_address PLUGIN CONFIG: through renewals and restarts of both sides, and gives it back.
keeps_its_address() {
    local address
    container c1
    daemon
    remember
    add "$1" c1 "$2"
    address=$(address_of c1 eth0)
    reaches c1 10.1.0.254
    check "$1" c1 "$2"
    renewed 2

    stop "$daemon"
    daemon
    renewed 2
    same "$address" "$(address_of c1 eth0)" "after the daemon was killed"
    check "$1" c1 "$2"

    leases
    stop "$server"
    server "${3-eth0}"
    renewed 2
    same "$address" "$(address_of c1 eth0)" "after the server was killed"
    reaches c1 10.1.0.254

    stop "$daemon"
    destroy c1
    del "$1" c1 "$2"
    leases | not grep expired
    daemon
    eventually released
    nothing_changed
}

config() {
    echo "{\"cniVersion\": \"1.1.0\", \"name\": \"net\", \"type\": \"$1\", $2, \"ipam\": {\"type\": \"dhcp\"}}"
}

test_a_bridge_container_keeps_its_address() {
    lan
    server
    ip link add name br0 type bridge
    ip link set br0 up
    ip link set lan master br0
    keeps_its_address bridge "$(config bridge '"bridge": "br0"')"
}

test_a_macvlan_container_keeps_its_address() {
    lan
    server
    keeps_its_address macvlan "$(config macvlan '"master": "lan"')"
}

test_an_ipvlan_container_keeps_its_address() {
    lan
    server
    keeps_its_address ipvlan "{\"cniVersion\": \"1.1.0\", \"name\": \"net\", \"type\": \"ipvlan\", \"master\": \"lan\",
        \"ipam\": {\"type\": \"dhcp\", \"broadcast\": true}}"
}

test_a_vlan_container_keeps_its_address() {
    lan
    at lan ip link add link eth0 name eth0.5 type vlan id 5
    at lan ip addr flush dev eth0
    add_address lan eth0.5 10.1.0.254/24
    at lan ip link set eth0.5 up
    server eth0.5
    keeps_its_address vlan "$(config vlan '"master": "lan", "vlanId": 5')" eth0.5
}

test_a_namespace_that_ends_gives_its_address_back() {
    lan
    server
    daemon
    container c1
    add macvlan c1 "$(config macvlan '"master": "lan"')"
    destroy c1
    eventually released
}

test_without_a_server_add_fails_and_without_a_daemon_del_does_not() {
    local config
    lan
    container c1
    config=$(config macvlan '"master": "lan"')
    remember
    expect_fail 999 ADD macvlan c1 "$config"
    said_contains /run/cni/dhcp.sock
    del macvlan c1 "$config"
    "$cni_bin/dhcp" daemon -timeout 500ms -resendtimeout 2s >/tmp/daemon.log 2>&1 &
    eventually grep -q ' /run/cni/dhcp.sock$' /proc/net/unix
    if call ADD macvlan c1 "$config"; then fail "it got $said"; fi
    said_contains eth0
    nothing_changed
}
