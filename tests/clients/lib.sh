# Runs one test of a file beside this one (`bash lib.sh FILE FUNCTION EXECUTABLE PACKAGES`), and is what tests are written with.
#
# A test is a function of tests/clients/FILE.sh; its name is a claim. It runs in network, mount and process namespaces of
# its own, which play the node, with /run, /var/lib, /opt and /etc of its own: it needs to tidy up nothing.
#
# It runs under `set -euo pipefail` and is traced: the first command that fails fails the test, and what it did is shown.
# Beware of what switches that off: commands before `&&` and `||`, in an `if`, and all that those call. `! command` never
# fails: write `not command`.
set -euo pipefail

readonly node=/run/node
readonly plugins=/opt/cni/bin
readonly config=/etc/cni/net.d
readonly go_plugins=$node/go
# The name of the containers' image; CRI takes its pause container from there, too.
readonly image=registry.k8s.io/pause:3.6

# --- The node -------------------------------------------------------------------------------------------------------

make_node() {
    mount -t tmpfs tmpfs /run
    mkdir -p "$node"/{upper,work} "$go_plugins" /run/netns
    mount -t overlay -o "lowerdir=/etc,upperdir=$node/upper,workdir=$node/work" overlay /etc
    mount -t tmpfs tmpfs /var/lib
    mount -t tmpfs -o mode=755 tmpfs /opt
    mkdir -p "$plugins" "$config" /var/lib/cni
    cp -a /usr/lib/cni/. "$go_plugins"
    # Debian's containerd would find the Go plugins there.
    mount -t tmpfs -o mode=755 tmpfs /usr/lib/cni
    # The OCI runtimes refuse two kinds of control groups side by side.
    if mountpoint -q /sys/fs/cgroup/unified; then umount -l /sys/fs/cgroup/unified; fi
    ip link set lo up
}

# install_ours [MANNER]: our executable under the names of all plugins, by "symbolic" links (as is usual), "hard" links or
# as "copies".
# install_package and the functions of the clients that run the image install them as a node does.
install_ours() {
    local link name
    find "$plugins" -mindepth 1 -delete
    cp "$executable" "$plugins/cnibox"
    for link in symlinks/*; do
        name=$(basename "$link")
        case ${1:-symbolic} in
        symbolic) ln -s cnibox "$plugins/$name" ;;
        hard) ln "$plugins/cnibox" "$plugins/$name" ;;
        copies) cp "$executable" "$plugins/$name" ;;
        esac
    done
}

# Our tool with the networks and plugins of the node.
ours() {
    NETCONFPATH=$config CNI_PATH=$plugins "$plugins/cnibox" "$@"
}

# The plugins of the Debian package, as dpkg unpacks them.
install_package() {
    find "$plugins" -mindepth 1 -delete
    dpkg-deb --extract "$packages"/cnibox_*.deb "$node/package"
    mount --bind "$node/package/usr/lib/cni" "$plugins"
}

# Whether another program has installed our executable under the names of all plugins.
ours_are_installed() {
    local link
    for link in symlinks/*; do cmp "$executable" "$plugins/$(basename "$link")" || return 1; done
}

go_plugins_are_back() {
    local plugin
    for plugin in "$go_plugins"/*; do cmp "$plugin" "$plugins/$(basename "$plugin")"; done
    [[ ! -e $plugins/cnibox ]]
}

install_go() {
    find "$plugins" -mindepth 1 -delete
    cp -a "$go_plugins/." "$plugins"
}

# A root file system with busybox and a page for its web server.
make_root() {
    local root=$node/root word
    mkdir -p "$root"/{bin,dev,etc,proc,sys,tmp,www}
    cp /bin/busybox "$root/bin"
    for word in cat httpd ip sh sleep wget; do ln -s busybox "$root/bin/$word"; done
    echo hello >"$root/www/index.html"
}

# An OCI image of it with the web server as its only program: $node/image.tar.
make_image() {
    local layer settings manifest
    make_root
    mkdir -p "$node/oci/blobs/sha256"
    cd "$node/oci"
    tar --directory "$node/root" --owner 0 --group 0 --create --file layer .
    layer=$(blob layer)
    cat >settings <<-JSON
	{"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/httpd", "-f", "-p", "80", "-h", "/www"]},
	 "rootfs": {"type": "layers", "diff_ids": ["sha256:$layer"]}}
	JSON
    settings=$(blob settings)
    cat >manifest <<-JSON
	{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
	 "config": $(descriptor config.v1+json "$settings"), "layers": [$(descriptor layer.v1.tar "$layer")]}
	JSON
    manifest=$(blob manifest)
    echo "{\"schemaVersion\": 2, \"manifests\": [$(descriptor manifest.v1+json "$manifest")]}" >index.json
    echo '{"imageLayoutVersion": "1.0.0"}' >oci-layout
    tar --create --file "$node/image.tar" blobs index.json oci-layout
    cd - >/dev/null
}

# Keeps a file by its content; says the digest.
blob() {
    local digest
    digest=$(sha256sum "$1" | cut -d ' ' -f 1)
    mv "$1" "blobs/sha256/$digest"
    echo "$digest"
}

descriptor() {
    echo "{\"mediaType\": \"application/vnd.oci.image.$1\", \"digest\": \"sha256:$2\"," \
        "\"size\": $(stat -c %s "blobs/sha256/$2")," \
        "\"annotations\": {\"io.containerd.image.name\": \"$image\"}}"
}

# --- Claims ---------------------------------------------------------------------------------------------------------

# shellcheck source=tests/claims.sh
source tests/claims.sh
readonly patience_s=60

# recipe_of PAGE TITLE [COMMAND]: the indented lines of docs/PAGE.md after a line that begins with this word in bold, with the image of
# the tests in place of IMAGE, and the command behind it where the line has none.
recipe_of() {
    awk -v title="**$2**" 'index($0, title) == 1 { on = 1; next } /^(\*\*|#)/ { on = 0 } on && sub(/^    /, "")' "docs/$1.md" |
        sed "s|IMAGE\$|$image ${3:-}|; s|IMAGE |$image |"
}

# --- A network beyond the host ----------------------------------------------------------------------------------------

# The namespace `outside` has 192.0.2.1, and the host 192.0.2.2.
make_outside() {
    ip netns add outside
    ip link add lan type veth peer name port netns outside
    ip address add 192.0.2.2/24 dev lan
    ip link set lan up
    ip -n outside address add 192.0.2.1/24 dev port
    ip -n outside link set port up
}

# is_served_outside PORT [SECONDS]
is_served_outside() {
    [[ $(ip netns exec outside timeout "${2:-60}" busybox wget -qO- "http://192.0.2.2:$1/") == hello ]]
}

# asks_slowly PORT: a connection from outside. The second half of its request waits for a line in $node/rest.
asks_slowly() {
    # shellcheck disable=SC2016 # the arguments of the inner shell
    ip netns exec outside timeout 60 bash -c '
        exec 3<>"/dev/tcp/192.0.2.2/$1"
        printf "GET / HTTP/1.0\r\n" >&3
        echo connected >"$2"
        read -r <"$3"
        printf "\r\n" >&3
        cat <&3
    ' asks_slowly "$1" "$node/connected" "$node/rest"
}

# The host forwards only what an administrator or CNI-FORWARD accepts; $node/rules keeps that.
drop_forwarded() {
    iptables-nft -P FORWARD DROP
    iptables-nft -A FORWARD -i lan -j ACCEPT
    iptables-nft-save >"$node/rules"
}

# A system bus, and firewalld. What is forwarded between `lan` and interfaces of other zones needs an accepting zone.
start_firewalld() {
    mkdir -p /run/dbus
    dbus-daemon --config-file=tests/fixtures/bus.conf --nofork &
    eventually test -S /run/dbus/system_bus_socket
    firewalld --nofork --nopid --log-target console &
    eventually firewall-cmd --state
    firewall-cmd --permanent --zone dmz --change-interface lan
    firewall-cmd --reload
}

# Changes of rules and sysctls by other programs.
readonly damages=(
    "iptables-nft-restore $node/rules" 'nft delete table ip cnibox' 'apply_sysctls' 'nft flush ruleset'
)

# `sysctl --system` on a host whose files disable forwarding. The pattern leaves out what is not the namespace's.
apply_sysctls() {
    mkdir -p /run/sysctl.d
    echo net.ipv4.ip_forward=0 >/run/sysctl.d/90-hardening.conf
    sysctl -q --system --pattern '^net.ipv4.ip_forward$'
}

# reconcile_restores PORT: after each damage the port is not served, and after `reconcile` it is; so is a connection from before.
reconcile_restores() {
    local damage asking begin
    mkfifo "$node/rest"
    for damage in "${damages[@]}"; do
        is_served_outside "$1"
        rm -f "$node/connected"
        asks_slowly "$1" >"$node/reply" &
        asking=$!
        eventually test -s "$node/connected"
        eval "$damage"
        not is_served_outside "$1" 2
        [[ -n $(ours reconcile --dry-run) ]]
        not is_served_outside "$1" 2
        begin=$EPOCHREALTIME
        [[ -n $(ours reconcile) ]]
        is_served_outside "$1"
        echo "$damage: served $(((${EPOCHREALTIME/./} - ${begin/./}) / 1000)) ms after the call of reconcile" >&2
        echo >"$node/rest"
        wait "$asking"
        grep -q hello "$node/reply"
        [[ -z $(ours reconcile) ]]
    done
}

# watcher_restores PORT: the watcher restores after each damage while traffic goes to the port of `flow.py serve`, $ROUNDS times.
watcher_restores() {
    local damage round
    for ((round = 0; round < ROUNDS; round++)); do
        # A new one each time: one leaves what is removed five times in a minute.
        start_watcher
        for damage in "${damages[@]}"; do
            is_served_outside 18080
            traffic_survives "$damage" ip netns exec outside /usr/bin/python3 tests/clients/flow.py ask 192.0.2.2 "$1"
            is_served_outside 18080
        done
        stop_watcher
    done
}

# traffic_survives DAMAGE FLOW...: the traffic of `flow.py ask` goes on after the damage. Prints the longest pauses, in milliseconds.
traffic_survives() {
    local asking
    : >"$node/pauses"
    "${@:2}" >"$node/pauses" &
    asking=$!
    eventually grep -q ready "$node/pauses"
    eval "$1"
    eventually is_restored
    sleep 1
    kill -TERM "$asking"
    wait "$asking"
    echo "pauses: $1: $(tail -n 1 "$node/pauses")" >&2
    pauses_are_at_most 5000
}

# reload_of_firewalld_is_repaired ID ADDRESS...: a reload takes the addresses of this container from firewalld's zone, and so its way
# out; reconcile and the watcher give them back. Needs start_firewalld.
reload_of_firewalld_is_repaired() {
    local netns round
    netns=$(netns_of "$1")
    ip netns exec outside /usr/bin/python3 tests/clients/flow.py serve 90 &
    eventually reaches_outside "$netns"
    are_trusted "${@:2}"
    firewall-cmd --reload
    not are_trusted "${@:2}"
    not reaches_outside "$netns"
    ours reconcile
    are_trusted "${@:2}"
    reaches_outside "$netns"
    [[ -z $(ours reconcile) ]]
    for ((round = 0; round < ROUNDS; round++)); do
        start_watcher
        traffic_survives 'firewall-cmd --reload' \
            nsenter --net="$netns" /usr/bin/python3 tests/clients/flow.py ask 192.0.2.1 90
        are_trusted "${@:2}"
        reaches_outside "$netns"
        stop_watcher
    done
}

# reaches_outside NETNS
reaches_outside() {
    # shellcheck disable=SC2016 # bash's own variables
    nsenter --net="$1" timeout 2 bash -c 'exec 3<>/dev/tcp/192.0.2.1/90; echo hello >&3; read -r said <&3; [[ $said == hello ]]'
}

# are_trusted ADDRESS...: all of the addresses are sources of firewalld's zone for containers.
are_trusted() {
    local address
    for address in "$@"; do firewall-cmd --zone trusted --query-source "$address" || return 1; done
}

pauses_are_at_most() {
    tail -n 1 "$node/pauses" | awk -v most="$1" '{ if (NF != 6 || $2 > most || $4 > most || $6 > most) exit 1 }'
}

is_restored() {
    [[ -z $(ours reconcile --dry-run) ]]
}

start_watcher() {
    : >"$node/watched"
    # In the process of the subshell, so that a signal reaches it.
    (NETCONFPATH=$config CNI_PATH=$plugins exec "$plugins/cnibox" reconcile --watch 2>>"$node/watched") &
    watcher=$!
    # It makes this table first, and then restores once.
    eventually nft list table ip cnibox-guard
    eventually is_restored
}

stop_watcher() {
    kill -TERM "$watcher"
    wait "$watcher"
    not nft list table ip cnibox-guard
}

# Of containers there is nothing left: no interface but the host's own and the bridges, no element in a set or map, no
# chain of the Go plugins, no reservation. A bridge keeps its element of portmap-localnet, as docs/leftovers.md says.
nothing_is_left() {
    not grep -E '^[0-9]+: (veth|ifb|bwp)' <<<"$(ip -o link)"
    not grep -E 'elements =|comment "(id|name|dnat)|CNI-DN-' <<<"$(nft list ruleset | sed '/set portmap-localnet {/,/^\t}/d')"
    not grep -E '/([0-9.]+|[0-9a-f:]+)$' <<<"$(find /var/lib/cni/networks -type f)"
}

# --- Containers in random states ------------------------------------------------------------------------------------

# Changes that a living container makes to its interface.
readonly changes=(
    true 'ip link set eth0 down' 'ip address flush dev eth0' 'ip link set eth0 address 02:00:00:00:00:99'
    'ip link set eth0 down; ip link set eth0 name vm0; ip link set vm0 up'
    'ip address flush dev eth0; ip link set eth0 down; ip link set eth0 name vm0' 'ip link del eth0'
)

# The namespaces from which gc is called: each command ends with its arguments.
readonly views=(
    '"$@"'
    'exec unshare --mount "$@"'
    "exec unshare --mount sh -c 'umount -a -t nsfs; exec \"\$@\"' sh \"\$@\""
    "exec unshare --mount sh -c 'mount -t tmpfs none /proc; exec \"\$@\"' sh \"\$@\""
    'exec unshare --pid --fork "$@"'
    'exec unshare --pid --fork --mount-proc "$@"'
    'exec unshare --net "$@"'
    'exec unshare --user --map-root-user --mount "$@"'
    "exec unshare --pid --fork --mount-proc sh -c 'mount --bind /var/lib/cni /var/lib/cni; exec \"\$@\"' sh \"\$@\""
)
living=()

# The path of the namespace of a container, as the cache of the runtime has it. That of podman is in the result only.
netns_of() {
    sed -nE 's/.*"(netns|sandbox)":"(\/[^"]*)".*/\2/p' /var/lib/cni/results/*-"$1"-eth0
}

# lives ID: the container lives from now on, after a random change.
lives() {
    nsenter --net="$(netns_of "$1")" sh -c "${changes[RANDOM % ${#changes[@]}]}"
    living+=("$1")
}

# ends ID PID...: its processes are killed and its namespace is gone, without DEL. The path can be left, or be that of a
# later process with the same number.
ends() {
    local netns number
    netns=$(netns_of "$1")
    kill -KILL "${@:2}"
    for number in "${@:2}"; do eventually not kill -0 "$number"; done
    case $netns in
    /proc/*)
        ((RANDOM % 2)) || return 0
        number=${netns#/proc/}
        take_number "${number%%/*}"
        ;;
    *)
        umount "$netns"
        ((RANDOM % 2)) || rm "$netns"
        ;;
    esac
}

# take_number PID: a process has the number, in a network namespace of its own.
take_number() {
    local try
    for try in {1..500}; do
        echo "$(($1 - 1))" >/proc/sys/kernel/ns_last_pid
        unshare --net sleep 1000 >/dev/null 2>&1 &
        [[ $! != "$1" ]] || return 0
        kill $!
    done
    return 1
}

# Each living container has its cache entry and its reservation.
the_living_are_kept() {
    local id
    for id in "${living[@]}"; do
        [[ -e $(echo /var/lib/cni/results/*-"$id"-eth0) ]]
        grep --quiet --recursive --fixed-strings "$id" /var/lib/cni/networks
    done
}

# The timer calls gc twice, as if 700 s were between the calls. The first removes nothing.
the_timer_calls_gc() {
    local before
    before=$(ls /var/lib/cni/results)
    ours gc --confirm
    [[ $(ls /var/lib/cni/results) == "$before" ]]
    /usr/bin/python3 - /run/cnibox/confirm <<-PYTHON
	import json, pathlib, sys
	file = pathlib.Path(sys.argv[1])
	memory = json.loads(file.read_text())
	memory["run"] -= 700
	for found in memory["found"]:
	    found["since"] -= 700
	file.write_text(json.dumps(memory))
	PYTHON
    ours gc --confirm
}

# gc removes nothing that may live, from whatever namespace; from the host it removes all that have ended. So does the timer, which
# half of the seeds choose.
gc_removes_the_dead_only() {
    local view
    ((${#living[@]} > 0))
    the_living_are_kept
    if ((SEED % 2)); then the_timer_calls_gc; fi
    the_living_are_kept
    if ((SEED % 2)); then only_the_living_are_left; fi
    for view in "${views[@]}"; do
        bash -c "$view" view "$plugins/cnibox" gc || true
        the_living_are_kept
    done
    ours gc
    the_living_are_kept
    only_the_living_are_left
}

only_the_living_are_left() {
    local file id
    for file in /var/lib/cni/results/*-eth0; do
        id=${file%-eth0}
        [[ " ${living[*]} " == *" ${id#*results/*-} "* ]]
    done
    [[ $(ours attachments) != *' gone '* ]]
    not grep ' gone$' <<<"$(ours ipam list)"
}

# --- One test -------------------------------------------------------------------------------------------------------

main() {
    local file=$1 test=$2
    executable=$3
    # The Debian package, and the image that installs the plugins.
    packages=$4
    installer=localhost/cnibox:$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    # shellcheck source=/dev/null
    source "tests/clients/$file.sh"
    make_node
    make_image
    install_ours
    prepare
    set -x
    "$test"
}

main "$@"
