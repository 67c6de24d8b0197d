# Each request to the kernel and each operation on a file fails once, for the plugins that need links which the kernel
# of tests/it lacks. After a failing ADD nothing is left, and after the next DEL nothing is left. tests/it/faults.rs does
# the same for the other plugins. The executable is the debug build, because only that has fault points.

cni_bin=/opt/cni/debug

# A call cannot tell that it made fewer requests than the number of the one to fail, and some requests may fail without
# harm. This many successes in a row mean that no request is left.
successes_min=12

ipam='"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]]}'

# config PLUGIN KEYS
config() {
    printf '{"cniVersion": "1.1.0", "name": "net", "type": "%s", %s}' "$1" "$2"
}

# Prints everything that a plugin can leave: links, addresses, routes, rules and files, on the host and in c1. It is read often, so it reads
# /proc with few processes.
look() {
    {
        cat /proc/net/dev /proc/net/fib_trie /proc/net/if_inet6
        nsenter --net=/run/netns/c1 sh -c 'cat /proc/net/dev /proc/net/fib_trie /proc/net/if_inet6; ip rule; ip -6 rule'
        find /var/lib/cni /run/cni -type f
    } | sed -E '/^fe80|\/lock$|\/last_reserved_ip|\/\.cnibox\//d
        s/^ *([^ :]+): *[0-9].*/link \1/
        s/^([0-9a-f]{32}) [0-9a-f]+ ([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ +/\1 \2 /'
}

# is_as_before WHAT: compares with /tmp/look-before.
is_as_before() {
    look >/tmp/look-after
    diff /tmp/look-before /tmp/look-after || fail "$1: something is left"
}

# fails_once VERB PLUGIN CONFIG KIND: fault number 1, 2, 3 ... until no request is left. KIND is KERNEL or FILE.
fails_once() {
    local verb=$1 plugin=$2 config=$3 kind=$4 number=0 successes=0 failures=0 status
    while [ $successes -lt $successes_min ]; do
        number=$((number + 1))
        [ "$verb" = ADD ] || add "$plugin" c1 "$config"
        fault=CNIBOX_FAIL_$kind=$number
        status=0
        call "$verb" "$plugin" c1 "$config" || status=$?
        fault=
        if [ $status = 0 ]; then
            successes=$((successes + 1))
        else
            successes=0 failures=$((failures + 1))
            said_contains 'cannot '
            [ "$verb" != ADD ] || is_as_before "$plugin ADD with fault $kind $number"
        fi
        del "$plugin" c1 "$config"
        forget_result
        is_as_before "$plugin DEL after $verb with fault $kind $number"
    done
    [ $failures -gt 0 ] || [ "$kind" = FILE ] || fail "CNIBOX_FAIL_$kind does nothing"
}

# The next call gets the result that a chained plugin needs, or none.
forget_result() {
    if [ "$chained" ]; then cp /tmp/previous "$result"; else rm -f "$result"; fi
}

# sweep VERB PLUGIN CONFIG: a first ADD makes what stays after each DEL, such as the bridge.
sweep() {
    local kind result chained=
    result=$(result_of c1)
    if [ -e "$result" ]; then
        chained=true
        cp "$result" /tmp/previous
    fi
    add "$2" c1 "$3"
    del "$2" c1 "$3"
    forget_result
    set +x
    look >/tmp/look-before
    for kind in ${kinds-KERNEL FILE}; do fails_once "$1" "$2" "$3" $kind; done
}

new_container() {
    container c1
    # The kernel keeps 127.0.0.1 from the first time that lo is up.
    at c1 ip link set lo up
    at c1 ip link set lo down
}

lan() {
    outside lan 10.1.0.253/24 10.1.0.254/24
}

# sweep_plugin VERB PLUGIN
sweep_plugin() {
    new_container
    case $2 in
    dummy) sweep "$1" dummy "$(config dummy "\"mtu\": 1400, $ipam")" ;;
    vlan) sweep "$1" vlan "$(config vlan "\"master\": \"lan\", \"vlanId\": 10, $ipam")" ;;
    ipvlan) sweep "$1" ipvlan "$(config ipvlan "\"master\": \"lan\", $ipam")" ;;
    vrf)
        add bridge c1 "$(config bridge "\"isDefaultGateway\": true, $ipam")"
        sweep "$1" vrf "$(config vrf '"vrfname": "blue"')"
        ;;
    bridge)
        # tests/it/faults.rs fails the operations on files and both families; VLANs add neither.
        kinds=KERNEL
        sweep "$1" bridge "$(config bridge '"vlan": 10, "vlanTrunk": [{"minID": 20, "maxID": 29}], "isGateway": true,
            "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}')"
        ;;
    esac
}

test_a_failing_add_of_dummy_leaves_nothing() {
    sweep_plugin ADD dummy
}

test_a_failing_del_of_dummy_leaves_nothing() {
    sweep_plugin DEL dummy
}

test_a_failing_add_of_vlan_leaves_nothing() {
    lan
    sweep_plugin ADD vlan
}

test_a_failing_del_of_vlan_leaves_nothing() {
    lan
    sweep_plugin DEL vlan
}

test_a_failing_add_of_ipvlan_leaves_nothing() {
    lan
    sweep_plugin ADD ipvlan
}

test_a_failing_del_of_ipvlan_leaves_nothing() {
    lan
    sweep_plugin DEL ipvlan
}

test_a_failing_add_of_vrf_leaves_nothing() {
    sweep_plugin ADD vrf
}

test_a_failing_del_of_vrf_leaves_nothing() {
    sweep_plugin DEL vrf
}

test_a_failing_add_of_bridge_with_vlans_leaves_nothing() {
    sweep_plugin ADD bridge
}

test_a_failing_del_of_bridge_with_vlans_leaves_nothing() {
    sweep_plugin DEL bridge
}
