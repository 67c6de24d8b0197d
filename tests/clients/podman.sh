# podman with its CNI backend, and buildah, which shares it.

prepare() {
    # There may be no right to raise limits, nor control groups of our own.
    cat >/etc/containers/containers.conf <<-TOML
	[containers]
	cgroups = "disabled"
	default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
	[network]
	network_backend = "cni"
	cni_plugin_dirs = ["$plugins"]
	network_config_dir = "$config"
	[engine]
	cgroup_manager = "cgroupfs"
	events_logger = "file"
	runtime = "crun"
	TOML
    cat >/etc/containers/storage.conf <<-TOML
	[storage]
	driver = "vfs"
	runroot = "$node/runroot"
	graphroot = "$node/graphroot"
	TOML
    tar --directory "$node/root" --create . | podman import --quiet - "$image" >/dev/null
}

# web NAME OPTION...: a container that serves its page.
web() {
    podman run --detach --name "$1" "${@:2}" "$image" /bin/httpd -f -p 80 -h /www
    eventually podman exec "$1" wget -qO- http://127.0.0.1/
}

# in_container NETWORK COMMAND: what a container says that is gone afterwards.
in_container() {
    podman run --rm --network "$1" "$image" /bin/sh -c "$2"
}

# collect_garbage NETWORK: what a runtime of 1.1.0 says when no container is left.
collect_garbage() {
    local plugin
    for plugin in bridge portmap firewall; do
        CNI_COMMAND=GC CNI_PATH=$plugins "$plugins/$plugin" <<-JSON
	{"cniVersion": "1.1.0", "name": "$1", "type": "$plugin", "ipMasq": true, "ipam": {"type": "host-local"},
	 "cni.dev/valid-attachments": []}
	JSON
    done
}

dual_stack() {
    podman network create --subnet 10.99.0.0/24 --ipv6 --subnet fd99::/64 "$1"
}

published_ports_are_served_in_both_families() {
    dual_stack eco
    web c1 --network eco -p 18080:80 -p 127.0.0.1:18081:80
    serves 127.0.0.1:18080 127.0.0.1:18081 10.99.0.1:18080 10.99.0.2 '[fd99::2]' '[fd99::1]:18080'
    not page 10.99.0.1:18081 2
    [[ $(podman inspect c1) == *'"IPAddress": "10.99.0.2"'*'"GlobalIPv6Address": "fd99::2"'* ]]
    [[ $(in_container eco 'wget -qO- http://10.99.0.2/') == hello ]]
    [[ $(in_container eco 'wget -qO- http://10.99.0.1:18080/; wget -qO- "http://[fd99::1]:18080/"') == $'hello\nhello' ]]
    podman rm --force --time 0 c1
    nothing_is_left
}

test_published_ports_are_served_through_symbolic_links() {
    published_ports_are_served_in_both_families
}

test_published_ports_are_served_through_hard_links() {
    install_ours hard
    published_ports_are_served_in_both_families
}

test_published_ports_are_served_by_the_debian_package() {
    install_package
    published_ports_are_served_in_both_families
}

test_published_ports_are_served_after_the_image_installed_itself_and_the_go_plugins_come_back() {
    install_go
    podman load --quiet --input "$packages"/cnibox-*-image.tar
    podman run --detach --name install --network none --volume "$plugins:/host$plugins" "$installer"
    eventually ours_are_installed
    podman rm --force --time 5 install
    published_ports_are_served_in_both_families
    "$plugins/cnibox" uninstall "$plugins"
    go_plugins_are_back
}

test_published_ports_are_served_by_copies() {
    install_ours copies
    published_ports_are_served_in_both_families
}

test_a_container_has_its_port_by_each_of_its_networks() {
    podman network create --subnet 10.98.0.0/24 one
    podman network create --subnet 10.99.0.0/24 two
    web c1 --network one,two -p 18080:80
    serves 10.98.0.2 10.99.0.2 127.0.0.1:18080
    podman network disconnect one c1
    serves 127.0.0.1:18080
    podman network connect one c1
    podman network disconnect two c1
    serves 127.0.0.1:18080
    podman rm --force --time 0 c1
    nothing_is_left
}

test_a_taken_port_is_refused_and_leaves_nothing() {
    podman network create --subnet 10.99.0.0/24 eco
    web c1 --network eco -p 18080:80
    local said
    said=$(not podman run --name c2 --network eco -p 18080:80 "$image" /bin/true 2>&1)
    [[ $said == *"cannot publish host port tcp 18080: it is taken by network eco, container "* ]]
    podman rm --force c2
    podman rm --force --time 0 c1
    nothing_is_left
}

test_requested_addresses_are_given() {
    local said
    dual_stack eco
    said=$(podman run --rm --network eco --ip 10.99.0.77 --ip6 fd99::77 --mac-address 02:11:22:33:44:55 "$image" \
        /bin/sh -c 'ip -o address show eth0; ip -o link show eth0')
    [[ $said == *10.99.0.77/24*fd99::77/64*02:11:22:33:44:55* ]]
    nothing_is_left
}

test_macvlan_reaches_the_network_of_its_parent() {
    ip link add lan type veth peer name port
    ip netns add outside
    ip link set port netns outside
    ip -n outside address add 10.95.0.1/24 dev port
    ip -n outside link set port up
    ip link set lan up
    ip netns exec outside busybox httpd -p 80 -h "$node/root/www"
    podman network create --driver macvlan --opt parent=lan --subnet 10.95.0.0/24 mac
    [[ $(in_container mac 'wget -qO- http://10.95.0.1/') == hello ]]
    not grep -E '/10[.]95' <<<"$(find /var/lib/cni/networks -type f)"
}

test_a_reload_brings_back_rules_that_were_flushed() {
    dual_stack eco
    web c1 --network eco -p 18080:80
    nft flush ruleset
    not page 127.0.0.1:18080 2
    podman network reload c1
    serves 127.0.0.1:18080 '[fd99::1]:18080'
    podman rm --force --time 0 c1
    nothing_is_left
}

test_reconcile_restores_what_other_programs_removed() {
    make_outside
    drop_forwarded
    dual_stack eco
    web c1 --network eco -p 18080:80
    web c2 --network eco -p 18081:80
    reconcile_restores 18080
    is_served_outside 18081
    podman rm --force --time 0 c1 c2
    nothing_is_left
}

test_the_watcher_keeps_connections() {
    local id
    make_outside
    drop_forwarded
    dual_stack eco
    web c1 --network eco -p 18080:80 -p 18090:90 -p 18090:90/udp
    id=$(podman inspect --format '{{.Id}}' c1)
    nsenter --net="$(netns_of "$id")" /usr/bin/python3 tests/clients/flow.py serve 90 &
    watcher_restores 18090
    start_watcher
    podman network reload c1
    eventually is_restored
    nft flush ruleset
    podman rm --force --time 0 c1
    nothing_is_left
    stop_watcher
    nothing_is_left
}

test_a_reload_of_firewalld_is_repaired() {
    make_outside
    start_firewalld
    dual_stack eco
    web c1 --network eco -p 18080:80
    reload_of_firewalld_is_repaired "$(podman inspect --format '{{.Id}}' c1)" 10.99.0.2/32 fd99::2/128
    is_served_outside 18080
    podman rm --force --time 0 c1
    not are_trusted 10.99.0.2/32
    not are_trusted fd99::2/128
    nothing_is_left
}

test_restarts_keep_the_port() {
    dual_stack eco
    web c1 --network eco -p 18080:80
    podman stop --time 0 c1
    nothing_is_left
    podman start c1
    eventually serves 127.0.0.1:18080
    podman restart --time 0 c1
    eventually serves 127.0.0.1:18080
    podman network rm --force --time 0 eco
    nothing_is_left
}

test_del_removes_what_the_go_plugins_made() {
    podman network create --subnet 10.99.0.0/24 eco
    install_go
    web c1 --network eco -p 18080:80
    serves 127.0.0.1:18080
    install_ours
    web c2 --network eco -p 18081:80
    serves 127.0.0.1:18080 127.0.0.1:18081 10.99.0.2 10.99.0.3
    podman rm --force --time 0 c1 c2
    nothing_is_left
}

# The Go plugins do not remove our objects in nf_tables, so GC does.
test_the_go_plugins_and_gc_remove_what_ours_made() {
    podman network create --subnet 10.99.0.0/24 eco
    web c1 --network eco -p 18080:80
    install_go
    web c2 --network eco -p 18081:80
    serves 127.0.0.1:18080 127.0.0.1:18081
    podman rm --force --time 0 c1 c2
    install_ours
    collect_garbage eco
    nothing_is_left
}

# ours WORD...: the runtime, on podman's networks.
test_an_attachment_of_podman_is_ours_to_check_and_delete() {
    dual_stack eco
    local id
    id=$(web c1 --network eco -p 18080:80)
    serves 127.0.0.1:18080
    ours check eco "$(podman inspect --format '{{.NetworkSettings.SandboxKey}}' c1)" --container-id "$id"
    ours gc
    serves 127.0.0.1:18080
    [[ $(ours attachments --check) == *" ${id:0:12} "*' alive '*' ok '* ]]
    ours del --container-id "$id"
    nothing_is_left
    podman rm --force --time 0 c1
    nothing_is_left
}

test_an_attachment_of_ours_is_podmans_to_delete() {
    dual_stack eco
    local id netns
    id=$(web c1 --network eco -p 18080:80)
    netns=$(podman inspect --format '{{.NetworkSettings.SandboxKey}}' c1)
    ours del --container-id "$id"
    ours add eco "$netns" --container-id "$id" -p 18081:80
    serves 127.0.0.1:18081
    podman rm --force --time 0 c1
    nothing_is_left
    [[ -z $(ls /var/lib/cni/results) ]]
    ours gc
}

# during_50_runs COMMAND...: runs the command again and again while 50 containers start. It may print nothing.
during_50_runs() {
    podman network create --subnet 10.99.0.0/24 eco
    local number runs=() count=0
    for number in {1..50}; do
        podman run --detach --name "c$number" --network eco "$image" /bin/sleep 1000 >/dev/null &
        runs+=($!)
    done
    while [[ $(jobs -pr) ]]; do
        [[ -z $("$@") ]]
        count=$((count + 1))
    done
    for number in "${runs[@]}"; do wait "$number"; done
    ((count > 0))
    [[ -z $("$@") ]]
    [[ $(ours attachments --check | grep -cE ' 10[.]99[.]0[.][0-9]+/24 .* alive +ok ') == 50 ]]
    [[ $(ours ipam list | grep -cE '^10[.]99[.]0[.][0-9]+ .* alive$') == 50 ]]
}

test_gc_during_50_runs_takes_nothing_away() {
    during_50_runs ours gc
    podman rm --force --time 0 --all >/dev/null
    nothing_is_left
}

test_a_release_of_leaks_during_50_runs_frees_nothing_that_lives() {
    during_50_runs ours ipam release --leaks
    podman rm --force --time 0 --all >/dev/null
    nothing_is_left
}

test_buildah_runs_in_a_network() {
    dual_stack eco
    local container
    container=$(buildah from "$image")
    [[ $(buildah run --isolation oci --runtime crun --network eco "$container" -- ip -o address) == *10.99.0.2/24*fd99::2/64* ]]
    nothing_is_left
}

test_a_network_of_cnibox_serves_podman_which_cnibox_lists_and_removes() {
    local said
    ours networks create eco --subnet 10.99.0.0/24 --subnet fd99::/64
    [[ $(podman network ls --format '{{.Name}} {{.Driver}}') == *'eco bridge'* ]]
    said=$(podman network inspect eco)
    [[ $said == *'"network_interface": "cnibox0"'*'"subnet": "10.99.0.0/24"'*'"gateway": "10.99.0.1"'* ]]
    web c1 --network eco --mac-address 02:11:22:33:44:55 -p 18080:80
    serves 127.0.0.1:18080 10.99.0.2 '[fd99::2]'
    said=$(ours attachments --check)
    [[ $said == *" eth0 "*" 10.99.0.2/24,fd99::2/64 "*18080-*80/tcp*" alive "*" ok "* ]]
    said=$(not ours networks rm eco 2>&1)
    [[ $said == *"uses it"* ]]
    podman rm --force --time 0 c1
    nothing_is_left
    ours networks rm eco
    not podman network exists eco
    not ip link show cnibox0
}

test_networks_of_podman_and_of_cnibox_have_different_subnets() {
    podman network create one
    ours networks create two
    podman network create three
    [[ $(ours networks) == *10.89.0.0/24*10.89.2.0/24*10.89.1.0/24* ]]
    not ours networks create one
    not podman network create two
}

# The processes of a container: its monitor, which would tell podman of its end, and its own.
processes_of() {
    podman inspect --format '{{.State.ConmonPid}} {{.State.Pid}}' "$1"
}

test_gc_removes_only_what_ended_of_containers_in_random_states() {
    local number id share
    podman network create --subnet 10.99.0.0/24 eco
    for ((number = 1; number <= STATES; number++)); do
        podman run --detach --name "c$number" --network eco "$image" /bin/sleep 1000 >/dev/null &
    done
    wait
    RANDOM=$SEED
    for ((number = 1; number <= STATES; number++)); do
        id=$(podman inspect --format '{{.Id}}' "c$number")
        case $((RANDOM % 6)) in
        0 | 1) lives "$id" ;;
        2)
            # As if it was paused, which needs control groups.
            lives "$id"
            kill -STOP "$(podman inspect --format '{{.State.Pid}}' "c$number")"
            ;;
        3)
            share=$(podman run --detach --network "container:c$number" "$image" /bin/sleep 1000)
            lives "$id"
            podman rm --force --time 0 "$share"
            ;;
        4) podman stop --time 0 "c$number" ;;
        # shellcheck disable=SC2046 # two numbers
        5) ends "$id" $(processes_of "c$number") ;;
        esac
    done
    podman create --network eco "$image" /bin/sleep 1000
    gc_removes_the_dead_only
    podman rm --force --time 0 --all
    nothing_is_left
}

# recipe TITLE: the commands of docs/podman.md, with the server of the image.
recipe() {
    recipe_of podman "$1" "/bin/httpd -f -p 80 -h /www"
}

test_a_hook_attaches_a_container_without_networks_of_podman() {
    cat >>/etc/containers/containers.conf <<<'hooks_dir = ["/etc/containers/oci/hooks.d"]'
    PATH=$PATH:$plugins eval "$(recipe 'By a hook')"
    serves 127.0.0.1:8080
    podman restart --time 0 web
    serves 127.0.0.1:8080
    [[ $(ours attachments) == *" eth0 "*"8080->80/tcp"*" alive "* ]]
    podman rm --force --time 0 web
    nothing_is_left
}

test_a_container_in_a_prepared_namespace_is_served() {
    local lines
    lines=$(recipe 'In a prepared namespace')
    PATH=$PATH:$plugins eval "$(head -n 3 <<<"$lines")"
    serves 127.0.0.1:8080
    PATH=$PATH:$plugins eval "$(tail -n 2 <<<"$lines")"
    nothing_is_left
}
