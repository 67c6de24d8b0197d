# ipvlan: every mode and flag with traffic, the chain, CHECK, DEL, GC.

lan() {
    outside lan 10.1.0.253/24 10.1.0.254/24 fd00:1::fd/64 fd00:1::fe/64
}

# In the network of the link.
l2='{"cniVersion": "1.1.0", "name": "net", "type": "ipvlan", "master": "lan",
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}}'

# In networks of their own, to which outside knows the way.
routed() {
    echo '{"cniVersion": "1.1.0", "name": "net", "type": "ipvlan", "master": "lan", "mode": "'"$1"'", "mtu": 1400,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00:2::/64"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}}'
}

test_l2_containers_reach_each_other_and_outside() {
    lan
    container c1 c2
    remember
    for name in c1 c2; do
        add ipvlan $name "$l2"
        check ipvlan $name "$l2"
        reaches $name 10.1.0.254
        reaches $name fd00:1::fe
    done
    same "$(cat /sys/class/net/lan/address)" "$(at c1 cat /sys/class/net/eth0/address)" "the MAC is the link's"
    reaches c1 10.1.0.3
    reaches c1 fd00:1::3
    reaches lan 10.1.0.2
    never_reaches host 10.1.0.2
    for name in c1 c2 c1; do
        del ipvlan $name "$l2"
        not at $name test -e /sys/class/net/eth0
    done
    nothing_changed
}

reach_outside_in_mode() {
    local config
    config=$(routed "$1")
    lan
    at lan ip route add 10.2.0.0/24 via 10.1.0.253
    at lan ip -6 route add fd00:2::/64 via fd00:1::fd
    container c1 c2
    remember
    for name in c1 c2; do
        add ipvlan $name "$config"
        check ipvlan $name "$config"
        reaches $name 10.1.0.254
        reaches $name fd00:1::fe
    done
    same 1400 "$(at c1 cat /sys/class/net/eth0/mtu)"
    reaches lan 10.2.0.2
    reaches lan fd00:2::2
    reaches c1 10.2.0.3
    reaches c1 fd00:2::3
    for name in c1 c2; do
        del ipvlan $name "$config"
    done
    nothing_changed
}

test_l3_containers_reach_outside_and_each_other() {
    reach_outside_in_mode l3
}

test_l3s_containers_reach_outside_and_each_other() {
    reach_outside_in_mode l3s
}

test_private_containers_reach_outside_and_not_each_other() {
    local config
    lan
    container c1 c2
    config=$(with "$l2" '"flag": "private"')
    for name in c1 c2; do
        add ipvlan $name "$config"
        check ipvlan $name "$config"
        reaches $name 10.1.0.254
    done
    never_reaches c1 10.1.0.3
    never_reaches c1 fd00:1::3
    # They share the link, so the next one decides.
    container c3
    add ipvlan c3 "$l2"
    reaches c1 10.1.0.3
    expect_fail 999 CHECK ipvlan c1 "$config"
    said_contains "interface eth0 does not have flag private"
}

test_vepa_containers_reach_each_other_by_the_switch_alone() {
    local config
    lan
    container c1 c2
    config=$(with "$l2" '"flag": "vepa"')
    for name in c1 c2; do
        add ipvlan $name "$config"
        check ipvlan $name "$config"
        reaches $name 10.1.0.254
    done
    never_reaches c1 10.1.0.3
}

test_check_tells_when_another_add_changed_the_mode() {
    lan
    container c1 c2
    add ipvlan c1 "$(routed l3)"
    check ipvlan c1 "$(routed l3)"
    add ipvlan c2 "$l2"
    expect_fail 999 CHECK ipvlan c1 "$(routed l3)"
    said_contains "interface eth0 does not have mode l3"
}

test_check_names_what_differs() {
    local other
    lan
    container c1
    other=$(with "$l2" '"mtu": 1300')
    add ipvlan c1 "$l2"
    expect_fail 999 CHECK ipvlan c1 "$other"
    said_contains "mtu 1500, not 1300"
    at c1 ip addr del 10.1.0.2/24 dev eth0
    expect_fail 999 CHECK ipvlan c1 "$l2"
    said_contains "10.1.0.2/24"
    at c1 ip addr add 10.1.0.2/24 dev eth0
    check ipvlan c1 "$l2"
    at c1 ip link set eth0 down
    expect_fail 999 CHECK ipvlan c1 "$l2"
    said_contains "eth0 is down"
    at c1 ip link del eth0
    expect_fail 999 CHECK ipvlan c1 "$l2"
    said_contains "eth0 not found"
}

chained='{"cniVersion": "1.1.0", "name": "net", "type": "ipvlan"}'

test_in_a_chain_it_takes_the_interface_and_addresses_of_the_plugin_before() {
    lan
    container c1
    remember
    echo '{"cniVersion": "1.1.0", "interfaces": [{"name": "lan"}],
        "ips": [{"address": "10.1.0.77/24", "gateway": "10.1.0.254"}, {"address": "fd00:1::77/64"}],
        "routes": [{"dst": "10.9.0.0/16"}], "dns": {"domain": "example.org"}}' >"$(result_of c1)"
    add ipvlan c1 "$chained"
    said_contains '"domain": "example.org"'
    said_contains '"interface": 0'
    said_contains '"name": "eth0"'
    same 10.1.0.77 "$(address_of c1 eth0)"
    same fd00:1::77 "$(address_of c1 eth0 6)"
    at c1 ip route | grep '^10.9.0.0/16 via 10.1.0.254 dev eth0'
    reaches c1 10.1.0.254
    reaches c1 fd00:1::fe
    same "cnibox net c1 eth0 on lan" "$(at c1 cat /sys/class/net/eth0/ifalias)"
    check ipvlan c1 "$chained"
    status ipvlan "$chained"
    del ipvlan c1 "$chained"
    nothing_changed
}

test_without_addresses_it_is_up() {
    lan
    container c1
    add ipvlan c1 '{"cniVersion": "1.1.0", "name": "net", "type": "ipvlan", "master": "lan"}'
    same "" "$(address_of c1 eth0)"
    check ipvlan c1 '{"cniVersion": "1.1.0", "name": "net", "type": "ipvlan", "master": "lan"}'
    at c1 ip addr add 10.1.0.9/24 dev eth0
    reaches c1 10.1.0.254
}

test_a_link_of_the_container_can_be_the_master() {
    local config
    lan
    container c1
    config=$(with "$l2" '"linkInContainer": true')
    ip addr flush dev lan
    give lan c1
    at c1 ip link set lan up
    add ipvlan c1 "$config"
    check ipvlan c1 "$config"
    reaches c1 10.1.0.254
    del ipvlan c1 "$config"
    at c1 test -e /sys/class/net/lan
    not at c1 test -e /sys/class/net/eth0
    # Nothing of it is left to look into.
    destroy c1
    del ipvlan c1 "$config"
}

test_del_frees_the_address_with_the_namespace_or_the_master_gone() {
    lan
    container c1 c2
    add ipvlan c1 "$l2"
    add ipvlan c2 "$l2"
    destroy c1
    del ipvlan c1 "$l2"
    not test -e /var/lib/cni/networks/net/10.1.0.2
    ip link del lan
    del ipvlan c2 "$l2"
    del ipvlan c2 "$l2"
    not test -e /var/lib/cni/networks/net/10.1.0.3
    not test -e /var/lib/cni/networks/net/fd00:1::3
}

test_a_failing_ipam_leaves_no_interface() {
    lan
    container c1
    remember
    expect_fail 7 ADD ipvlan c1 '{"cniVersion": "1.1.0", "name": "net", "type": "ipvlan", "master": "lan",
        "ipam": {"type": "none-such"}}'
    not at c1 test -e /sys/class/net/eth0
    nothing_changed
}

test_gc_releases_what_is_not_valid() {
    lan
    container c1 c2
    add ipvlan c1 "$l2"
    add ipvlan c2 "$l2"
    gc ipvlan "$l2" c2
    not test -e /var/lib/cni/networks/net/10.1.0.2
    check ipvlan c2 "$l2"
}

test_containers_that_start_together_all_get_their_own() {
    local names name
    lan
    names=$(seq 16 | sed 's/^/c/')
    container $names
    for name in $names; do
        (add ipvlan $name "$l2") &
    done
    wait
    for name in $names; do
        check ipvlan $name "$l2"
        reaches $name 10.1.0.254
    done
}
