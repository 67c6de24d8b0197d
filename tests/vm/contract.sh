# The rules of tests/it/contract.rs for the plugins that need links which the kernel of tests/it lacks, and DEL of a
# container with a path that another container has by now (tests/it/reused_path.rs).

# Two routes to one destination, which the kernel tells apart by gateway and priority.
routes='[{"dst": "10.9.0.0/16", "gw": "10.1.0.253"}, {"dst": "10.9.0.0/16", "gw": "10.1.0.254", "priority": 100},
    {"dst": "fd09::/48", "gw": "fd00:1::fd"}, {"dst": "fd09::/48", "gw": "fd00:1::fe", "priority": 100}]'
ipam='"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00:1::/64"}]],
    "routes": '"$routes"'}'

# config PLUGIN [VERSION]
config() {
    local keys
    case $1 in
    vlan) keys=', "master": "lan", "vlanId": 10' ;;
    ipvlan) keys=', "master": "lan"' ;;
    vrf) keys=', "vrfname": "blue"' ;;
    bridge) keys=', "isDefaultGateway": true' ;;
    *) keys= ;;
    esac
    [ "$1" = vrf ] || keys="$keys, $ipam"
    printf '{"cniVersion": "%s", "name": "net", "type": "%s"%s}' "${2-1.1.0}" "$1" "$keys"
}

# begin PLUGIN CONTAINER [VERSION], end PLUGIN CONTAINER: the bridge before a chained plugin.
begin() {
    [ "$1" != vrf ] || add bridge "$2" "$(config bridge "${3-1.1.0}")"
}

end() {
    [ "$1" != vrf ] || del bridge "$2" "$(config bridge)"
    rm -f "$(result_of "$2")"
}

results_have_the_shape_of_their_version() {
    local version
    for version in 0.1.0 0.2.0 0.3.0 0.3.1 0.4.0 1.0.0 1.1.0; do
        begin "$1" c1 $version
        add "$1" c1 "$(config "$1" $version)"
        said_contains "\"cniVersion\": \"$version\""
        case $version in
        0.[12].0) said_contains '"ip4"' ;;
        *) said_contains '"interfaces"' ;;
        esac
        case $version in
        0.[34].[01]) said_contains '"version": "4"' ;;
        *) not said_contains '"version"' ;;
        esac
        del "$1" c1 "$(config "$1" $version)"
        end "$1" c1
    done
}

calls_that_cannot_be_are_refused() {
    local gc
    gc=$(with "$(config "$1" 1.0.0)" '"cni.dev/valid-attachments": []')
    expect_fail 1 CHECK "$1" c1 "$(config "$1" 0.3.1)"
    expect_fail 1 GC "$1" '' "$gc"
    expect_fail 1 STATUS "$1" '' "$gc"
    expect_fail 1 ADD "$1" c1 "$(config "$1" 9.0.0)"
    expect_fail 7 GC "$1" '' "$(config "$1")"
    said_contains cni.dev/valid-attachments
    [ "$1" != vrf ] || expect_fail 7 ADD vrf c1 "$(config vrf)"
    status "$1" "$(config "$1")"
    nothing_changed
}

a_failing_add_leaves_nothing() {
    begin "$1" c1
    state >/tmp/state-begun
    for netns in /run/netns/none /proc/thread-self/ns/net /dev/null; do
        if call ADD "$1" c1 "$(config "$1")"; then fail "ADD with $netns succeeded"; fi
        state | diff /tmp/state-begun -
    done
    unset netns
    end "$1" c1
}

# Also where no ADD was, and twice.
del_needs_no_namespace() {
    local path
    del "$1" c1 "$(config "$1")"
    for path in /run/netns/c1 /dev/null /run/none/none ''; do
        begin "$1" c1
        add "$1" c1 "$(config "$1")"
        destroy c1
        netns=$path
        del "$1" c1 "$(config "$1")"
        del "$1" c1 "$(config "$1")"
        end "$1" c1
        unset netns
        not test -e /run/netns/c1
        eventually nothing_changed
        container c1
    done
}

another_network_keeps_what_is_valid_and_check_needs_the_result() {
    local other
    begin "$1" c1
    add "$1" c1 "$(config "$1")"
    state >/tmp/state-added
    network_of c1 >/tmp/network-added
    gc "$1" "$(config "$1")" c1
    other=$(config "$1" | sed 's/"name": "net"/"name": "other"/')
    gc "$1" "$other"
    del "$1" c1 "$other"
    state | diff /tmp/state-added -
    network_of c1 | diff /tmp/network-added -
    mv "$(result_of c1)" /tmp/kept
    expect_fail 7 CHECK "$1" c1 "$(config "$1")"
    said_contains 'required prevResult missing'
    mv /tmp/kept "$(result_of c1)"
    check "$1" c1 "$(config "$1")"
    del "$1" c1 "$(config "$1")"
    end "$1" c1
    nothing_changed
}

keeps_the_rules() {
    outside lan 10.1.0.253/24 10.1.0.254/24
    container c1
    # The first ADD makes the bridge, which stays.
    begin "$1" c1
    end "$1" c1
    remember
    results_have_the_shape_of_their_version "$1"
    calls_that_cannot_be_are_refused "$1"
    a_failing_add_leaves_nothing "$1"
    del_needs_no_namespace "$1"
    another_network_keeps_what_is_valid_and_check_needs_the_result "$1"
}

test_dummy_keeps_the_rules() {
    keeps_the_rules dummy
}

test_vlan_keeps_the_rules() {
    keeps_the_rules vlan
}

test_ipvlan_keeps_the_rules() {
    keeps_the_rules ipvlan
}

test_vrf_keeps_the_rules() {
    keeps_the_rules vrf
}

# network_of NAME: its addresses, routes and rules. The kernel ends "tentative" by itself.
network_of() {
    at "$1" sh -c 'ip -o addr; ip route; ip rule' | sed 's/ tentative//'
}

# spares PLUGIN: a and b have their namespaces at one path, one after the other; DEL of a leaves the interface of b.
spares() {
    outside lan 10.1.0.253/24 10.1.0.254/24
    netns=/run/netns/pod
    container pod
    begin "$1" a
    add "$1" a "$(config "$1")"
    destroy pod
    container pod
    begin "$1" b
    add "$1" b "$(config "$1")"
    network_of pod >/tmp/pod-before
    del "$1" a "$(config "$1")"
    end "$1" a
    network_of pod | diff /tmp/pod-before -
    check "$1" b "$(config "$1")"
    del "$1" b "$(config "$1")"
    end "$1" b
    not at pod test -e /sys/class/net/eth0
    [ -z "$(ls /var/lib/cni/networks/net | grep -E '^(10|fd00)')" ] || fail "an address is left"
}

test_del_of_dummy_spares_the_container_that_has_the_path_now() {
    spares dummy
}

test_del_of_vlan_spares_the_container_that_has_the_path_now() {
    spares vlan
}

test_del_of_ipvlan_spares_the_container_that_has_the_path_now() {
    spares ipvlan
}

test_del_of_vrf_spares_the_container_that_has_the_path_now() {
    spares vrf
}
