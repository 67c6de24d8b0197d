# The switch of a live node from the Go plugins to cnibox and back, while containers of podman run.

# shellcheck source=tests/clients/podman.sh
source tests/clients/podman.sh

# A host behind the node, which has no route to the containers: it answers to masqueraded packets only.
make_outside() {
    ip link add wan type veth peer name port
    ip netns add outside
    ip link set port netns outside
    ip -n outside address add 10.95.0.1/24 dev port
    ip -n outside address add fd95::1/64 dev port nodad
    ip -n outside link set port up
    ip address add 10.95.0.2/24 dev wan
    ip address add fd95::2/64 dev wan nodad
    ip link set wan up
    ip netns exec outside busybox httpd -p 80 -h "$node/root/www"
}

# reaches NAME ADDRESS...: a container gets the page of each address.
reaches() {
    local address
    for address in "${@:2}"; do [[ $(timeout 60 podman exec "$1" wget -qO- "http://$address/") == hello ]]; done
}

# works NAME LAST PORT: the container with these last digits of its addresses serves its page, also at its published port, and
# reaches the host behind the node.
works() {
    serves "10.99.0.$2" "[fd99::$2]" "127.0.0.1:$3" "10.99.0.1:$3" "[fd99::1]:$3"
    reaches "$1" 10.95.0.1 '[fd95::1]'
}

# published NAME LAST PORT: starts such a container. The Go plugins do not wait until the kernel has checked its IPv6 address.
published() {
    local address
    web "$1" --network eco -p "$3:80"
    for address in "[fd99::$2]" "[fd99::1]:$3"; do eventually serves "$address"; done
    works "$@"
}

switch_to_ours() {
    "$executable" install --force --backup "$plugins"
    ours_are_installed
}

switch_back() {
    "$plugins/cnibox" uninstall "$plugins"
    only_go_plugins_are_there
}

# Also no file of the installer is there, and the modes and owners are those of before.
only_go_plugins_are_there() {
    diff -r "$go_plugins" "$plugins"
    diff <(cd "$go_plugins" && stat -c '%n %f %U %G' ./*) <(cd "$plugins" && stat -c '%n %f %U %G' ./*)
}

# The rules of all programs, for IPv4 and IPv6.
all_rules() {
    nft list ruleset
    iptables-save
    ip6tables-save
}

# sets_with WORD: the sets and maps with an element that has the word, as FAMILY TABLE NAME.
sets_with() {
    nft list ruleset | awk -v "word=$1" '
        $1 == "table" { table = $2 " " $3 }
        $1 == "set" || $1 == "map" { name = $2 }
        index($0, word) { print table, name }' | sort -u
}

# only_container LAST: the only host interface and the only reservations are those of the container with these last digits.
only_container() {
    [[ $(ip -o link | grep -cE '^[0-9]+: veth') == 1 ]]
    [[ $(find /var/lib/cni/networks/eco -name '10.*' -o -name 'fd*' | sort) == \
        /var/lib/cni/networks/eco/10.99.0.$1$'\n'/var/lib/cni/networks/eco/fd99::$1 ]]
}

test_a_live_node_switches_from_the_go_plugins_and_back() {
    local id chain
    make_outside
    dual_stack eco
    install_go
    published go 2 18080
    id=$(podman inspect --format '{{.Id}}' go)
    chain=$(iptables-save -t nat | sed -nE "s/.*$id.* -j (CNI-[0-9a-f]{24})$/\1/p" | sort -u)
    [[ $chain == CNI-* ]]

    switch_to_ours
    works go 2 18080
    published ours 3 18081
    works go 2 18080
    reaches go 10.99.0.3 '[fd99::3]' 10.99.0.1:18081 '[fd99::1]:18081'
    reaches ours 10.99.0.2 '[fd99::2]' 10.99.0.1:18080 '[fd99::1]:18080'
    podman rm --force --time 0 go
    # The name of the chain with the published ports has the same digits, and fewer.
    not grep -E "$id|${chain:4:21}|(dports? |tcp [.] )18080|10[.]99[.]0[.]2([^0-9]|$)|fd99::2([^0-9a-f]|$)" <<<"$(all_rules)"
    only_container 3
    works ours 3 18081

    switch_back
    works ours 3 18081
    published again 4 18080
    works ours 3 18081
    reaches again 10.99.0.3 '[fd99::3]' 10.99.0.1:18081 '[fd99::1]:18081'
    reaches ours 10.99.0.4 '[fd99::4]' 10.99.0.1:18080 '[fd99::1]:18080'
}

# removes_rules COMMAND...: the Go plugins leave the rules of a container that ours attached. The command removes them.
removes_rules() {
    local id
    make_outside
    dual_stack eco
    install_go
    published go 2 18080
    switch_to_ours
    published ours 3 18081
    id=$(podman inspect --format '{{.Id}}' ours)
    switch_back
    podman rm --force --time 0 ours
    only_container 2
    diff - <(sets_with "$id") <<-LEFT
	ip cnibox firewall-addresses
	ip cnibox masquerade-sources
	ip cnibox portmap-masqueraded-24
	ip cnibox portmap-masqueraded-8
	ip cnibox portmap-published
	ip cnibox portmap-sources-24
	ip cnibox portmap-sources-8
	ip6 cnibox firewall-addresses
	ip6 cnibox masquerade-sources
	ip6 cnibox portmap-masqueraded-64
	ip6 cnibox portmap-published
	ip6 cnibox portmap-sources-64
	LEFT
    "$@"
    [[ -z $(sets_with "$id") ]]
    [[ -z $(find /var/lib/cni/results -name "*$id*") ]]
    published again 4 18081
    works go 2 18080
}

test_the_go_plugins_leave_the_rules_of_ours_which_doctor_removes() {
    removes_rules "$executable" doctor --fix --yes
}

test_the_go_plugins_leave_the_rules_of_ours_which_gc_removes() {
    removes_rules "$executable" gc
}

test_an_executable_that_does_not_run_replaces_nothing() {
    local said
    make_outside
    dual_stack eco
    install_go
    published one 2 18080
    mount --bind "$plugins" "$plugins"
    mount -o remount,bind,noexec "$plugins"
    said=$(not "$executable" install --force --backup "$plugins" 2>&1)
    [[ $said == *"cnibox: cannot install into $plugins: the new "*" does not work here: "*"Permission denied"* ]]
    only_go_plugins_are_there
    mount -o remount,bind,exec "$plugins"
    works one 2 18080
    published two 3 18081
    podman rm --force --time 0 one two
    nothing_is_left
}

# killed_at NUMBER COMMAND...: SIGKILL comes with this rename.
killed_at() {
    local status=0
    strace -o "$node/trace" -e "inject=rename:signal=KILL:when=$1" "${@:2}" || status=$?
    ((status == 137))
}

# Each file of the Go plugins is whole, or ours is in its place.
each_name_is_whole() {
    local file
    for file in "$go_plugins"/*; do
        cmp "$file" "$plugins/${file##*/}" || cmp "$executable" "$plugins/${file##*/}"
    done
}

test_a_killed_switch_is_completed_by_its_repetition() {
    local pair
    make_outside
    dual_stack eco
    install_go
    published go 2 18080
    # There: a backup, the plugin after bridge, one after portmap, and the last manifest. Back: plugins.
    for pair in 9:1 20:7 35:12 39:16; do
        killed_at "${pair%:*}" "$executable" install --force --backup "$plugins"
        each_name_is_whole
        works go 2 18080
        web mixed --network eco -p 18081:80
        serves 127.0.0.1:18081
        switch_to_ours
        [[ -z $(find "$plugins" -name '.cnibox.tmp.*') ]]
        works go 2 18080
        podman rm --force --time 0 mixed
        only_container 2
        killed_at "${pair#*:}" "$plugins/cnibox" uninstall "$plugins"
        each_name_is_whole
        works go 2 18080
        switch_back
    done
}
