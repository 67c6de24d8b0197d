# Configurations change between ADD and DEL: the keys of links that only the kernel of this machine has. The keys of all
# others are toggled in tests/it/toggle, which also compares this file with its table.

ip='"ipam": {"type": "static", "addresses": [{"address": "10.1.0.7/24"}, {"address": "fd00:1::7/64"}]}'

# Where pings come from when the container is attached again; empty for no pings.
from=

# config PLUGIN [KEYS]
config() {
    case $1 in
    vrf) printf '{"cniVersion": "1.1.0", "name": "net", "type": "vrf"%s}' "${2:+, $2}" ;;
    *) printf '{"cniVersion": "1.1.0", "name": "net", "type": "%s", %s%s}' "$1" "$ip" "${2:+, $2}" ;;
    esac
}

# begin PLUGIN CONFIG: an ADD, after that of a bridge where the plugin follows one.
begin() {
    if [ "$1" = vrf ]; then add bridge c1 "$(config bridge)"; fi
    add "$1" c1 "$2"
}

# end_by_del PLUGIN CONFIG: nothing of the plugin is left, in the container neither.
end_by_del() {
    del "$1" c1 "$2"
    if [ "$1" = vrf ]; then
        not at c1 test -e /sys/class/net/blue
        del bridge c1 "$(config bridge)"
    fi
    not at c1 test -e /sys/class/net/eth0
    rm -f "$(result_of c1)"
    nothing_changed
}

# end_by_gc PLUGIN CONFIG: what is in the container ends with its namespace.
end_by_gc() {
    gc "$1" "$2"
    if [ "$1" = vrf ]; then gc bridge "$(config bridge)"; fi
    nothing_changed
    # A namespace ends in the kernel's own time, and a link with it.
    if at c1 test -e /sys/class/net/eth0; then at c1 ip link del eth0; fi
    destroy c1
    rm -f "$(result_of c1)"
    new_container
}

# The container, with a link that others can sit on.
new_container() {
    container c1
    at c1 ip link add uplink type dummy
    at c1 ip link set uplink up
}

# toggle PLUGIN KEY VALUE [OTHER_KEYS [required]]: the key is taken out between ADD and DEL, or GC, and put in. Without
# a key that is required there is a DEL, but no ADD.
toggle() {
    local plugin=$1 with without again way address
    without=$(config "$plugin" "${4-}")
    with=$(config "$plugin" "\"$2\": $3${4:+, $4}")
    again=$without
    if [ "${5-}" = required ]; then again=$with; fi
    for way in end_by_del end_by_gc; do
        begin "$plugin" "$with"
        $way "$plugin" "$without"
        if [ "$again" = "$without" ]; then
            begin "$plugin" "$without"
            $way "$plugin" "$with"
        fi
    done
    begin "$plugin" "$again"
    if [ "$from" ]; then
        for address in 10.1.0.7 fd00:1::7; do reaches "$from" "$address"; done
    fi
    end_by_del "$plugin" "$again"
}

# Another host, in the network of the link `lan`.
lan() {
    outside lan 10.1.0.253/24 10.1.0.254/24 fd00:1::fd/64 fd00:1::fe/64
}

# A neighbour on a bridge that filters VLANs, without any of its own.
neighbour() {
    container neighbour
    add bridge neighbour '{"cniVersion": "1.1.0", "name": "other", "type": "bridge", "vlanTrunk": [], "ipam":
        {"type": "static", "addresses": [{"address": "10.1.0.200/24"}, {"address": "fd00:1::c8/64"}]}}'
}

test_keys_of_dummy_are_toggled() {
    new_container
    remember
    toggle dummy mtu 1400
    toggle dummy mac '"02:00:00:00:00:77"'
}

test_keys_of_ipvlan_are_toggled() {
    lan
    ip route add default via 10.1.0.254
    new_container
    remember
    from=lan
    toggle ipvlan master '"lan"'
    toggle ipvlan mode '"l3"'
    toggle ipvlan flag '"private"'
    toggle ipvlan mtu 1400
    from=
    toggle ipvlan linkInContainer true '"master": "uplink"' required
}

test_keys_of_vlan_are_toggled() {
    lan
    at lan ip addr flush dev eth0
    at lan ip link add link eth0 name v10 type vlan id 10
    add_address lan v10 10.1.0.254/24
    add_address lan v10 fd00:1::fe/64
    at lan ip link set v10 up
    new_container
    remember
    from=lan
    toggle vlan master '"lan"' '"vlanId": 10' required
    toggle vlan mtu 1400 '"master": "lan", "vlanId": 10'
    from=
    toggle vlan vlanId 10 '"master": "lan"'
    toggle vlan linkInContainer true '"master": "uplink", "vlanId": 10' required
}

test_keys_of_vrf_are_toggled() {
    neighbour
    new_container
    remember
    from=neighbour
    toggle vrf vrfname '"blue"' '' required
    toggle vrf table 10 '"vrfname": "blue"'
}

test_vlan_keys_of_bridge_are_toggled() {
    neighbour
    new_container
    remember
    from=neighbour
    toggle bridge vlan 10
    toggle bridge vlanTrunk '[{"minID": 20, "maxID": 29}, {"id": 40}]'
    from=
    toggle bridge preserveDefaultVlan true '"vlan": 10'
}
