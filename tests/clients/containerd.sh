# containerd, asked by its own tool (which looks for plugins in the usual directory, as on Debian) and by the CRI.

readonly socket=/run/containerd/containerd.sock

# shellcheck source=tests/bench/storm.sh
source tests/bench/storm.sh

prepare() {
    # There may be no right to lower a score, nor control groups of our own.
    cat >"$node/config.toml" <<-TOML
	version = 2
	root = "$node/containerd"
	state = "/run/containerd"
	oom_score = 0
	[grpc]
	address = "$socket"
	[plugins."io.containerd.grpc.v1.cri"]
	disable_cgroup = true
	restrict_oom_score_adj = true
	[plugins."io.containerd.grpc.v1.cri".cni]
	bin_dir = "$plugins"
	conf_dir = "$config"
	[plugins."io.containerd.grpc.v1.cri".containerd]
	snapshotter = "native"
	TOML
    cat >"$config/10-pods.conflist" <<-JSON
	{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	    {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
	     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}], [{"subnet": "fd88::/64"}]],
	              "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
	    {"type": "portmap", "capabilities": {"portMappings": true}},
	    {"type": "bandwidth", "capabilities": {"bandwidth": true}},
	    {"type": "firewall"},
	    {"type": "tuning"}
	]}
	JSON
    trap 'tail -n 20 "$node/log"' EXIT
    containerd --config "$node/config.toml" >"$node/log" 2>&1 &
    eventually ctr version
    ctr --namespace default images import --snapshotter native "$node/image.tar"
    ctr --namespace k8s.io images import --snapshotter native "$node/image.tar"
}

cri() {
    # Debian's, which has Debian's gRPC.
    /usr/bin/python3 tests/clients/cri.py "$socket" "$@"
}

test_a_container_of_ctr_is_reached_and_ends() {
    local said
    said=$(ctr run --rm --snapshotter native --cni "$image" k1 /bin/ip -o address)
    [[ $said == *' lo '*127.0.0.1/8*10.88.0.2/16*fd88::2/64* ]]
    nothing_is_left
    ctr run --detach --snapshotter native --cni "$image" k2
    eventually serves 10.88.0.3 '[fd88::3]'
    [[ $(ctr run --rm --snapshotter native --cni "$image" k3 /bin/wget -qO- http://10.88.0.3/) == hello ]]
    # It does not call DEL for what it started in the background.
    ctr task kill --signal KILL k2
    eventually ctr task rm k2
}

test_the_lines_of_the_document_run_a_container() {
    local lines said id
    lines=$(recipe_of runtimes containerd)
    install_go
    mkdir "$node/tool"
    ln -s "$executable" "$node/tool/cnibox"
    rm "$config"/*
    said=$(PATH=$PATH:$node/tool CONTAINERD_SNAPSHOTTER=native eval "$lines")
    ours_are_installed
    [[ $said == *$'\n'pods$'\n'*' eth0 '*10.89.0.2/24* ]]
    nothing_is_left
    # The network of pods, without a word about it.
    eventually cri ready
    id=$(cri run web 18080)
    serves 127.0.0.1:18080
    [[ $(cri status "$id") == 10.89.0.* ]]
    cri stop "$id"
    cri remove "$id"
    nothing_is_left
}

test_a_pod_has_its_port_and_its_limits_and_ends() {
    local id other
    eventually cri ready
    id=$(cri run web 18080)
    [[ $(cri status "$id") == $'10.88.0.2\nfd88::2' ]]
    serves 10.88.0.2 '[fd88::2]' 127.0.0.1:18080 10.88.0.1:18080 '[fd88::1]:18080'
    [[ $(tc qdisc show) == *'rate 100Mbit'* ]]
    other=$(cri run other 18081)
    serves 127.0.0.1:18080 127.0.0.1:18081
    # The address of the removed pod is kept for a while; the other pod keeps its own.
    cri stop "$id"
    not page 127.0.0.1:18080 2
    serves 127.0.0.1:18081
    cri remove "$id"
    cri stop "$other"
    cri stop "$other"
    cri remove "$other"
    nothing_is_left
}

# The options of packaging/kubernetes/daemonset.yaml are in the image.
test_a_pod_runs_after_the_image_installed_itself() {
    local id
    install_go
    ctr --namespace k8s.io images import --snapshotter native --platform linux/amd64 "$packages"/cnibox-*-image.tar
    ctr --namespace k8s.io run --detach --snapshotter native --read-only \
        --mount "type=bind,src=$plugins,dst=/host$plugins,options=rbind:rw" "$installer" install
    eventually ours_are_installed
    eventually cri ready
    id=$(cri run web 18080)
    serves 127.0.0.1:18080 10.88.0.2 '[fd88::2]'
    ctr --namespace k8s.io task kill --signal TERM install
    eventually ctr --namespace k8s.io task rm install
    # The plugins stay.
    cri stop "$id"
    cri remove "$id"
    nothing_is_left
    "$plugins/cnibox" uninstall "$plugins"
    go_plugins_are_back
}

test_a_pod_of_the_debian_package_is_served() {
    local id
    install_package
    eventually cri ready
    id=$(cri run web 18080)
    serves 127.0.0.1:18080
    cri stop "$id"
    cri remove "$id"
    nothing_is_left
}

test_a_pod_with_a_taken_port_is_an_error_and_leaves_nothing() {
    local id said
    id=$(cri run web 18080)
    said=$(not cri run thief 18080 2>&1)
    [[ $said == *"cannot publish host port tcp 18080: it is taken by network pods, container $id"* ]]
    cri stop "$id"
    cri remove "$id"
    nothing_is_left
}

test_pods_of_the_go_plugins_end_with_ours() {
    local id
    install_go
    id=$(cri run web 18080)
    serves 127.0.0.1:18080
    install_ours
    serves 127.0.0.1:18080
    cri stop "$id"
    cri remove "$id"
    nothing_is_left
}

test_pods_that_start_at_once_all_get_their_port() {
    local number pids=()
    for number in {1..20}; do
        cri run "pod$number" "$((18000 + number))" >"$node/id$number" &
        pids+=($!)
    done
    for number in "${pids[@]}"; do wait "$number"; done
    for number in {1..20}; do serves "127.0.0.1:$((18000 + number))"; done
    for number in {1..20}; do
        cri stop "$(<"$node/id$number")" &
        pids[number - 1]=$!
    done
    for number in "${pids[@]}"; do wait "$number"; done
    nothing_is_left
}

test_reconcile_restores_what_other_programs_removed() {
    local id
    make_outside
    drop_forwarded
    eventually cri ready
    id=$(cri run web 18080)
    eventually is_served_outside 18080
    reconcile_restores 18080
    [[ $(tc qdisc show) == *'rate 100Mbit'* ]]
    cri stop "$id"
    cri remove "$id"
    nothing_is_left
}

test_the_watcher_keeps_connections() {
    local id
    make_outside
    drop_forwarded
    eventually cri ready
    id=$(cri run web 18080 18090:90 18090:90/udp)
    nsenter --net="$(netns_of "$id")" /usr/bin/python3 tests/clients/flow.py serve 90 &
    watcher_restores 18090
    cri stop "$id"
    cri remove "$id"
    nothing_is_left
}

test_a_reload_of_firewalld_is_repaired() {
    local id
    make_outside
    start_firewalld
    eventually cri ready
    id=$(cri run web 18080)
    reload_of_firewalld_is_repaired "$id" 10.88.0.2/32 fd88::2/128
    is_served_outside 18080
    cri stop "$id"
    cri remove "$id"
    not are_trusted 10.88.0.2/32
    not are_trusted fd88::2/128
    nothing_is_left
}

test_a_del_during_a_repair_leaves_nothing() {
    local kept number id
    eventually cri ready
    kept=$(cri run kept 18080)
    start_watcher
    for number in {1..6}; do
        # One watcher delays what is removed six times in a row.
        if ((number == 4)); then stop_watcher; start_watcher; fi
        id=$(cri run "pod$number" "$((18080 + number))")
        nft flush ruleset &
        sleep "0.$(printf %02d $((3 * (number - 1))))"
        cri stop "$id"
        cri remove "$id"
        eventually is_restored
        serves 127.0.0.1:18080
        not grep -F "$id" <<<"$(nft list ruleset; cat /var/lib/cni/results/*)"
    done
    stop_watcher
    cri stop "$kept"
    cri remove "$kept"
    nothing_is_left
}

# pods_are_in PREFIX: a new pod has an address that begins so.
pods_are_in() {
    local id said
    id=$(cri run "pod$RANDOM" 18080)
    said=$(cri status "$id")
    cri stop "$id"
    cri remove "$id"
    [[ $said == "$1"* ]]
}

test_pods_are_in_the_network_that_cnibox_lists_as_the_first() {
    local id said
    eventually cri ready
    pods_are_in 10.88.0.
    CNI_PATH=$plugins "$plugins/cnibox" networks create 00-first
    said=$(CNI_PATH=$plugins "$plugins/cnibox" networks | tr -s ' ')
    [[ $said == *$'\n00-first 10.89.0.0/24 bridge,portmap,firewall,tuning - 1 1 1 '*$'\npods '*' - 2 2 2 '* ]]
    eventually pods_are_in 10.89.0.
    id=$(cri run web 18080)
    said=$(CNI_PATH=$plugins "$plugins/cnibox" attachments --check | tr -s ' ')
    [[ $said == *$'\n00-first '"${id:0:12} eth0 10.89.0."*"/24 18080->80/tcp alive ok "* ]]
    [[ $said == *$'\ncni-loopback '"${id:0:12} lo 127.0.0.1/8,::1/128 "*" alive unsupported "* ]]
    cri stop "$id"
    cri remove "$id"
    echo '{' >"$config/0.conflist"
    eventually not cri ready
    said=$(CNI_PATH=$plugins "$plugins/cnibox" networks | tr -s ' ')
    [[ $said == *$'\n00-first '*' - - 1 1 '* ]]
}

# The processes of a container: its shim, which would tell containerd of its end, and its own.
processes_of() {
    local own
    own=$(ctr --namespace "$1" task ls | awk -v id="$2" '$1 == id { print $2 }')
    echo "$(ps -o ppid= -p "$own")" "$own"
}

# A pod of the CRI has a path below /run/netns, a container of ctr that of a process.
test_gc_removes_only_what_ended_of_pods_in_random_states() {
    local number id namespace
    eventually cri ready
    RANDOM=$SEED
    for ((number = 1; number <= STATES; number++)); do
        case $((RANDOM % 2)) in
        0)
            namespace=k8s.io
            id=$(cri run "pod$number" "$((18000 + number))")
            cache_id=$id
            ;;
        1)
            namespace=default id=k$number cache_id=default-k$number
            ctr run --detach --snapshotter native --cni "$image" "$id"
            ;;
        esac
        case $((RANDOM % 4)) in
        0 | 1) lives "$cache_id" ;;
        2)
            kill -STOP "$(processes_of "$namespace" "$id" | awk '{ print $2 }')"
            lives "$cache_id"
            ;;
        # shellcheck disable=SC2046 # two numbers
        3) ends "$cache_id" $(processes_of "$namespace" "$id") ;;
        esac
    done
    gc_removes_the_dead_only
}
