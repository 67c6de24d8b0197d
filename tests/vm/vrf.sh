# vrf. The kernels of tests/it lack VRF, so all of its tests are here.

# Networks of layer 2, all with the same subnets.
network() {
    echo '{"cniVersion": "1.1.0", "name": "net", "type": "bridge", "bridge": "'"$1"'", "ipam": {"type": "static",
        "addresses": [{"address": "10.1.0.'"$2"'/24", "gateway": "10.1.0.1"}, {"address": "fd00:1::'"$2"'/64"}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.5.0.0/16", "scope": 253}, {"dst": "10.6.0.0/16", "table": 77},
            {"dst": "fd09::/48", "gw": "fd00:1::1"}]}}'
}
# The same for a neighbour, who is their gateway.
neighbour() {
    echo '{"cniVersion": "1.1.0", "name": "'"$1"'", "type": "bridge", "bridge": "'"$1"'", "ipam": {"type": "static",
        "addresses": [{"address": "10.1.0.1/24"}, {"address": "fd00:1::1/64"}]}}'
}

vrf() {
    echo '{"cniVersion": "1.1.0", "name": "net", "type": "vrf", "vrfname": "'"$1"'"'"${2-}"'}'
}

# Two routing domains in c1, each with a neighbour; no address differs.
two_domains() {
    container c1 a b
    add bridge a "$(neighbour one)"
    add bridge b "$(neighbour two)"
    add bridge c1 "$(network one 2)"
    add vrf c1 "$(vrf blue)"
    ifname=net1 add bridge c1 "$(network two 2)"
    ifname=net1 add vrf c1 "$(vrf red)"
}

# IPv4 only: busybox's ip cannot print other tables for IPv6.
routes() {
    at c1 ip route show table "$1" | sed 's/ *$//' | grep -Ev '^(local|broadcast)' | sort || true
}

master() {
    at c1 sh -c "basename \$(readlink /sys/class/net/$1/master)"
}

test_interfaces_with_the_same_subnets_live_in_one_container() {
    two_domains
    at c1 sh -c 'echo 1 >/proc/sys/net/ipv4/tcp_l3mdev_accept'
    serve c1 80
    for peer in a b; do
        fetches "$peer" http://10.1.0.2/ c1
        fetches "$peer" 'http://[fd00:1::2]/' c1
        reaches "$peer" fd00:1::2
    done
    for address in 10.1.0.1 fd00:1::1; do
        at c1 ping -q -c 2 -W 5 -I blue "$address"
        at c1 ping -q -c 2 -W 5 -I red "$address"
    done
    # Without the other domain's neighbour only that domain is cut off.
    destroy b
    at c1 ping -q -c 2 -W 5 -I blue 10.1.0.1
    not at c1 ping -q -c 1 -W 1 -I red 10.1.0.1
    check vrf c1 "$(vrf blue)"
    ifname=net1 check vrf c1 "$(vrf red)"
}

test_addresses_and_routes_go_along_and_come_back() {
    container c1
    add bridge c1 "$(network one 2)"
    before=$(routes main)
    at c1 ip route show table 77 | grep -q '^10.6.0.0/16'
    add vrf c1 "$(vrf blue ', "table": 500')"
    same blue "$(master eth0)"
    same fd00:1::2 "$(address_of c1 eth0 6)"
    same '' "$(routes main)"
    same "$before" "$(routes 500)"
    container peer
    add bridge peer "$(neighbour one)"
    reaches peer fd00:1::2
    # By the route that came along.
    add_address peer eth0 fd09::1/128
    at c1 ping -q -c 2 -W 5 -I blue fd09::1
    not at c1 ping -q -c 1 -W 1 fd00:1::1
    at c1 ping -q -c 2 -W 5 -I blue fd00:1::1
    at c1 ip route show table 77 | grep -q '^10.6.0.0/16'
    add vrf c1 "$(vrf blue)"
    check vrf c1 "$(vrf blue)"
    check bridge c1 "$(network one 2)"
    del vrf c1 "$(vrf blue)"
    check bridge c1 "$(network one 2)"
    same "$before" "$(routes main)"
    same fd00:1::2 "$(address_of c1 eth0 6)"
    reaches c1 fd00:1::1
    at c1 ip route show table 77 | grep -q '^10.6.0.0/16'
    not at c1 test -e /sys/class/net/blue
    del vrf c1 "$(vrf blue)"
}

test_the_last_interface_takes_the_domain_along() {
    container c1
    add bridge c1 "$(network one 2)"
    ifname=net1 add bridge c1 "$(network two 3)"
    add vrf c1 "$(vrf blue)"
    ifname=net1 add vrf c1 "$(vrf blue)"
    del vrf c1 "$(vrf blue)"
    same blue "$(master net1)"
    # Gone already, as when the container itself removed it.
    at c1 ip link del net1
    ifname=net1 del vrf c1 "$(vrf blue)"
    not at c1 test -e /sys/class/net/blue
}

test_del_goes_by_what_the_interface_is_in() {
    container c1
    add bridge c1 "$(network one 2)"
    add vrf c1 "$(vrf blue)"
    del vrf c1 "$(vrf green)"
    not at c1 test -e /sys/class/net/blue
    add vrf c1 "$(vrf blue)"
    destroy c1
    del vrf c1 "$(vrf blue)"
    gc vrf "$(vrf blue)"
}

test_used_tables_are_left_alone() {
    container c1
    at c1 ip rule add from 10.7.0.1 lookup 1
    add bridge c1 "$(network one 2)"
    at c1 ip route add 10.7.0.0/16 dev eth0 table 2
    add vrf c1 "$(vrf blue)"
    same '' "$(routes 1)"
    same '10.7.0.0/16 dev eth0 scope link' "$(routes 2)"
    routes 3 | grep -q '^10.1.0.0/24 dev eth0'
    ifname=net1 add bridge c1 "$(network two 2)"
    ifname=net1 add vrf c1 "$(vrf red)"
    routes 4 | grep -q '^10.1.0.0/24 dev net1'
}

test_a_changed_key_is_refused() {
    container c1
    add bridge c1 "$(network one 2)"
    add vrf c1 "$(vrf blue ', "table": 500')"
    expect_fail 999 ADD vrf c1 "$(vrf red)"
    said_contains 'it already has master blue'
    not at c1 test -e /sys/class/net/red
    ifname=net1 add bridge c1 "$(network two 3)"
    ifname=net1 expect_fail 999 ADD vrf c1 "$(vrf blue ', "table": 501')"
    said_contains 'VRF blue has table 500, not 501'
    ifname=net1 expect_fail 999 ADD vrf c1 "$(vrf eth0)"
    said_contains 'Netlink eth0 is not a VRF'
}

test_one_thing_taken_away_is_one_thing_named() {
    container c1
    add bridge c1 "$(network one 2)"
    config=$(vrf blue ', "table": 500')
    while read -r command text; do
        add vrf c1 "$config"
        check vrf c1 "$config"
        at c1 sh -c "$(echo "$command" | tr _ ' ')"
        expect_fail 999 CHECK vrf c1 "$config"
        said_contains "$text"
        at c1 sh -c 'ip link set blue up; ip rule add l3mdev pref 1000 2>/dev/null || true'
        del vrf c1 "$config"
        del bridge c1 "$(network one 2)"
        add bridge c1 "$(network one 2)"
    done <<'END'
ip_link_set_blue_down interface blue is down
ip_link_set_eth0_nomaster interface eth0 is not in VRF blue
ip_link_del_blue VRF blue not found
ip_-6_addr_del_fd00:1::2/64_dev_eth0 address fd00:1::2/64 is not on interface eth0
ip_addr_del_10.1.0.2/24_dev_eth0 address 10.1.0.2/24 is not on interface eth0
ip_route_del_10.5.0.0/16_table_500 route to 10.5.0.0/16 in table 500 not found
ip_route_del_default_table_500 route to 0.0.0.0/0 in table 500 not found
ip_route_del_10.6.0.0/16_table_77 route to 10.6.0.0/16 in table 77 not found
ip_-6_route_del_fd09::/48_table_500 route to fd09::/48 in table 500 not found
END
}

test_many_at_once_choose_different_tables() {
    container c1
    for number in 1 2 3 4 5 6; do
        ifname=net$number add bridge c1 "$(network "br$number" 2)"
    done
    running=
    for number in 1 2 3 4 5 6; do
        ifname=net$number add vrf c1 "$(vrf "vrf$((number % 3))")" &
        running="$running $!"
    done
    for pid in $running; do wait "$pid"; done
    for number in 1 2 3 4 5 6; do
        same "vrf$((number % 3))" "$(master net$number)"
        ifname=net$number check vrf c1 "$(vrf "vrf$((number % 3))")"
    done
    for table in 1 2 3; do
        same 2 "$(routes $table | grep -c '^10.1.0.0/24')"
    done
    same '' "$(routes 4)"
}

test_status_is_fine() {
    status vrf "$(vrf blue)"
    not test -e /sys/class/net/cnibox-probe
}

# Of a result with two interfaces, as a plugin that makes both returns it.
test_check_compares_its_own_interface_only() {
    container c1
    add bridge c1 "$(network one 2)"
    at c1 ip link add name other type dummy
    add_address c1 other 10.2.0.2/24
    at c1 ip link set other up
    at c1 ip route add 10.8.0.0/16 via 10.2.0.1
    echo '{"cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "sandbox": "/run/netns/c1"}, {"name": "other", "sandbox": "/run/netns/c1"}],
        "ips": [{"address": "10.1.0.2/24", "interface": 0}, {"address": "10.2.0.2/24", "interface": 1}],
        "routes": [{"dst": "10.6.0.0/16", "table": 77}, {"dst": "10.8.0.0/16", "gw": "10.2.0.1"},
            {"dst": "0.0.0.0/0", "gw": "0.0.0.0"}]}' >"$(result_of c1)"
    add vrf c1 "$(vrf blue)"
    check vrf c1 "$(vrf blue)"
    at c1 ip route del 10.6.0.0/16 table 77
    expect_fail 999 CHECK vrf c1 "$(vrf blue)"
    said_contains 'route to 10.6.0.0/16 in table 77 not found'
}
