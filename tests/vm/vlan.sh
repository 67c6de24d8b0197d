# vlan: traffic on the right VLAN and no other, CHECK, DEL, GC, failures.

# A host outside that is in VLAN 10 and VLAN 20, and answers only for what it has in each.
lan() {
    local id
    outside lan 10.1.0.253/24 10.1.0.254/24
    at lan sh -c 'echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore'
    for id in 10 20; do
        at lan ip link add link eth0 name v$id type vlan id $id
        add_address lan v$id 10.$id.0.254/24
        add_address lan v$id fd00:$id::fe/64
        at lan ip link set v$id up
    done
}

vlan() {
    echo '{"cniVersion": "1.1.0", "name": "net'"$1"'", "type": "vlan", "master": "lan", "vlanId": '"$1"',
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.'"$2"'.0.0/24"}], [{"subnet": "fd00:'"$2"'::/64"}]]}}'
}

test_a_container_reaches_its_vlan_and_no_other() {
    lan
    container c10 c20 stranger
    remember
    add vlan c10 "$(vlan 10 10)"
    check vlan c10 "$(vlan 10 10)"
    reaches c10 10.10.0.254
    reaches c10 fd00:10::fe
    reaches lan 10.10.0.2
    add vlan c20 "$(vlan 20 20)"
    reaches c20 10.20.0.254
    reaches c20 fd00:20::fe
    # It has addresses as if it were in VLAN 10, but is in 20.
    del vlan c20 "$(vlan 20 20)"
    add vlan stranger "$(vlan 20 10)"
    never_reaches stranger 10.10.0.254
    never_reaches stranger fd00:10::fe
    never_reaches stranger 10.10.0.2
    del vlan c10 "$(vlan 10 10)"
    del vlan stranger "$(vlan 20 10)"
    nothing_changed
}

test_the_interface_is_as_asked() {
    local config
    lan
    container c1
    config='{"cniVersion": "1.1.0", "name": "net", "type": "vlan", "master": "lan", "vlanId": 4094, "mtu": 1400}'
    add vlan c1 "$config"
    same 1400 "$(at c1 cat /sys/class/net/eth0/mtu)"
    at c1 ip link show eth0 | grep '[<,]UP[,>]'
    same "$(cat /sys/class/net/lan/address)" "$(at c1 cat /sys/class/net/eth0/address)"
    at c1 grep 'VID: 4094' /proc/net/vlan/eth0
    same "" "$(address_of c1 eth0)"
    check vlan c1 "$config"
    expect_fail 999 CHECK vlan c1 "$(with "$config" '"mtu": 1300')"
    said_contains "mtu 1400, not 1300"
    expect_fail 999 CHECK vlan c1 "$(with "$config" '"vlanId": 7')"
    said_contains "interface eth0 does not have VLAN id 7"
    del vlan c1 "$config"
    not at c1 test -e /sys/class/net/eth0
}

test_check_tells_another_vlan_and_another_link() {
    local config
    lan
    container c1
    config='{"cniVersion": "1.1.0", "name": "net", "type": "vlan", "master": "lan", "vlanId": 10}'
    add vlan c1 "$config"
    at c1 ip link del eth0
    ip link add link lan name eth0 type vlan id 11
    give eth0 c1
    at c1 ip link set eth0 up
    expect_fail 999 CHECK vlan c1 "$config"
    said_contains "VLAN id 10"
    at c1 ip link del eth0
    ip link add name other type dummy
    ip link set other address "$(cat /sys/class/net/lan/address)"
    ip link set other up
    ip link add link other name eth0 type vlan id 10
    give eth0 c1
    at c1 ip link set eth0 up
    expect_fail 999 CHECK vlan c1 "$config"
    said_contains "interface eth0 is not on lan"
}

test_a_link_has_a_vlan_once() {
    lan
    container c1 c2
    add vlan c1 "$(vlan 10 10)"
    remember
    expect_fail 999 ADD vlan c2 "$(vlan 10 10)"
    said_contains "VLAN device already exists"
    not at c2 test -e /sys/class/net/eth0
    nothing_changed
    reaches c1 10.10.0.254
}

# The kernel removes the link of c1 some time after its namespace ended. ADD of c2 begins at once.
test_the_vlan_of_a_container_that_ended_is_free() {
    lan
    local n
    for n in 1 2 3 4 5; do
        container c1 c2
        add vlan c1 "$(vlan 10 10)"
        destroy c1
        add vlan c2 "$(vlan 10 10)"
        reaches c2 10.10.0.254
        del vlan c2 "$(vlan 10 10)"
        del vlan c1 "$(vlan 10 10)"
        destroy c2
    done
}

test_a_master_that_is_down_is_named_and_nothing_is_left() {
    lan
    container c1
    ip link set lan down
    remember
    expect_fail 999 ADD vlan c1 "$(vlan 10 10)"
    said_contains "master lan is down"
    expect_fail 50 STATUS vlan '' "$(vlan 10 10)"
    not at c1 test -e /sys/class/net/eth0
    nothing_changed
}

test_a_link_of_the_container_can_be_the_master() {
    local config
    lan
    container c1
    config=$(with "$(vlan 10 10)" '"linkInContainer": true')
    ip addr flush dev lan
    give lan c1
    at c1 ip link set lan up
    add vlan c1 "$config"
    check vlan c1 "$config"
    reaches c1 10.10.0.254
    del vlan c1 "$config"
    at c1 test -e /sys/class/net/lan
    not at c1 test -e /sys/class/net/eth0
}

test_del_frees_the_address_with_the_namespace_or_the_master_gone() {
    lan
    container c1 c2
    add vlan c1 "$(vlan 10 10)"
    add vlan c2 "$(vlan 20 20)"
    destroy c1
    del vlan c1 "$(vlan 10 10)"
    not test -e /var/lib/cni/networks/net10/10.10.0.2
    ip link del lan
    del vlan c2 "$(vlan 20 20)"
    del vlan c2 "$(vlan 20 20)"
    not test -e /var/lib/cni/networks/net20/10.20.0.2
    expect_fail 50 STATUS vlan '' "$(vlan 20 20)"
}

test_gc_releases_what_is_not_valid() {
    lan
    container c1
    add vlan c1 "$(vlan 10 10)"
    gc vlan "$(vlan 10 10)" c1
    check vlan c1 "$(vlan 10 10)"
    gc vlan "$(vlan 10 10)"
    not test -e /var/lib/cni/networks/net10/10.10.0.2
}
