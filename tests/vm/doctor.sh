# `cnibox doctor` on kernels that lack a module.

# Networks with ipvlan, masquerading and published ports.
networks() {
    export NETCONFPATH=/tmp/net.d CNI_PATH=$cni_bin
    mkdir -p $NETCONFPATH
    cat >$NETCONFPATH/dbnet.conflist <<END
{"cniVersion": "1.1.0", "name": "dbnet", "plugins": [
    {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true,
        "ipam": {"type": "host-local", "subnet": "10.5.0.0/24"}},
    {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
    cat >$NETCONFPATH/lan.conflist <<END
{"cniVersion": "1.1.0", "name": "lan", "plugins": [
    {"type": "ipvlan", "master": "lo", "ipam": {"type": "host-local", "subnet": "10.6.0.0/24"}}]}
END
}

# doctor STATUS: prints the faults.
doctor() {
    local status=0
    "$cni_bin/cnibox" doctor 2>/tmp/notes >/tmp/faults || status=$?
    cat /tmp/notes
    same "$1" $status "exit code after: $(cat /tmp/faults)"
    cat /tmp/faults
}

# without COMMAND MODULE...: the kernel does not have the modules while the command runs.
without() {
    local command=$1 modprobe module modules
    shift
    modprobe=$(cat /proc/sys/kernel/modprobe)
    echo /none >/proc/sys/kernel/modprobe
    modules=$*
    for module in $modules; do rmmod $module; done
    $command
    echo "$modprobe" >/proc/sys/kernel/modprobe
    modprobe -a $(cat /vm/modules)
}

test_a_healthy_host_has_no_faults() {
    networks
    remember
    doctor 0
    same 'no fault found in 2 networks and 0 attachments' "$(cat /tmp/faults)"
    not grep -q 'no network here uses' /tmp/notes
    nothing_changed
}

# The modules that use one, and the ones that use those, before it.
users_of() {
    local user
    for user in $(ls "/sys/module/$1/holders"); do users_of $user; done
    echo "$1"
}

lacks_ipvlan() {
    doctor 1
    same "broken: the kernel lacks CONFIG_IPVLAN (module ipvlan); needed by ipvlan" "$(head -n 1 /tmp/faults)"
    grep -qx '    fix: modprobe ipvlan' /tmp/faults
    same 1 "$(grep -c ^broken: /tmp/faults)"
}

machine_a_kernel_without_ipvlan_is_found() {
    networks
    without lacks_ipvlan ipvlan
    doctor 0
}

lacks_nf_tables() {
    doctor 1
    same "broken: the kernel lacks CONFIG_NF_TABLES (module nf_tables); needed by bridge (ipMasq), bridge (macspoofchk), bridge (internal), veth (ipMasq), ptp (ipMasq), firewall, portmap" \
        "$(head -n 1 /tmp/faults)"
    grep -qx '    fix: modprobe nf_tables' /tmp/faults
    same 1 "$(grep -c ^broken: /tmp/faults)"
}

machine_a_kernel_without_nf_tables_is_found() {
    networks
    without lacks_nf_tables $(users_of nf_tables | awk '!seen[$0]++')
    doctor 0
}
