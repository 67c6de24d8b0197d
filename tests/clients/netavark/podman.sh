# podman with netavark, whose driver is our executable.
#
# A test is a function; its name is a claim. It runs on a node of its own (node.sh), and needs to tidy up nothing. It is traced, and the first
# command that fails fails it. Beware of what switches that off: commands before `&&` and `||`, in an `if`, and all that those call.
# `! command` never fails: write `not command`.
set -euo pipefail

readonly image=localhost/web patience_s=30

prepare() {
    # There may be no right to raise limits, nor control groups of our own.
    mkdir -p /etc/containers
    cat >/etc/containers/containers.conf <<-TOML
	[containers]
	cgroups = "disabled"
	default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
	[engine]
	cgroup_manager = "cgroupfs"
	events_logger = "file"
	runtime = "crun"
	TOML
    cat >/etc/containers/storage.conf <<-TOML
	[storage]
	driver = "vfs"
	runroot = "/run/containers/storage"
	graphroot = "/var/lib/containers/storage"
	TOML
    local word
    mkdir -p /tmp/image/{bin,www,tmp}
    cp "$(command -v busybox)" /tmp/image/bin
    for word in cat httpd ip nc sh sleep wget; do ln -s busybox "/tmp/image/bin/$word"; done
    echo hello >/tmp/image/www/index.html
    tar --directory /tmp/image --create . | podman import --quiet - "$image" >/dev/null
}

# web NAME OPTION...: a container that serves its page.
web() {
    podman run --detach --name "$1" "${@:2}" "$image" /bin/httpd -f -p 80 -h /www >/dev/null
    eventually podman exec "$1" wget -qO- http://127.0.0.1/
}

address_of() {
    podman inspect --format "{{(index .NetworkSettings.Networks \"$2\").IPAddress}}" "$1"
}

# Ends what a restart of the host ends: processes, namespaces, links, rules, and the files below /run.
restart_host() {
    local link
    # shellcheck disable=SC2046
    kill -KILL $(pidof conmon httpd aardvark-dns) || true
    umount --lazy /run/netns/* /run/netns || true
    nft flush ruleset
    ip -o link | sed -nE 's/^[0-9]+: ([^:@]+).*/\1/p' | grep -vx lo | while read -r link; do ip link delete "$link" || true; done
    find /run /dev/shm -mindepth 1 -maxdepth 1 -exec rm -rf {} +
    mkdir /run/netns
}

# Of containers there is nothing left.
nothing_is_left() {
    not grep -E '^[0-9]+: (veth|cnb)' <<<"$(ip -o link)"
    not grep -E 'elements =|comment "(id|name|dnat)' <<<"$(nft list ruleset 2>/dev/null | sed '/set portmap-localnet {/,/^\t}/d')"
    not grep -E '/([0-9.]+|[0-9a-f:]+)$' <<<"$(find /var/lib/cni/networks -type f 2>/dev/null)"
    [[ -z $(find /var/lib/cni/results /var/lib/cni/attachments -type f 2>/dev/null) ]]
}

test_a_published_port_is_served() {
    podman network create --driver cnibox --ipv6 web
    web c1 --network web -p 8080:80 -p 127.0.0.1:8081:80
    serves 127.0.0.1:8080 127.0.0.1:8081 10.89.0.1:8080 "$(address_of c1 web)"
    not page 10.89.0.1:8081 2
    serves "[$(podman inspect --format '{{.NetworkSettings.Networks.web.GlobalIPv6Address}}' c1)]"
    [[ $(podman port c1) == *'80/tcp -> 0.0.0.0:8080'* ]]
    [[ $(podman run --rm --network web "$image" wget -qO- "http://$(address_of c1 web)/") == hello ]]
    podman rm --force --time 0 c1
    nothing_is_left
}

test_addresses_and_names_of_the_command_line_are_used() {
    podman network create --driver cnibox --disable-dns --subnet 10.50.0.0/24 --ip-range 10.50.0.128/25 --dns 192.0.2.53 web
    web c1 --network web:ip=10.50.0.7,mac=02:00:00:00:00:07,interface_name=net7
    [[ $(address_of c1 web) == 10.50.0.7 ]]
    [[ $(podman exec c1 ip address show net7) == *02:00:00:00:00:07*10.50.0.7/24* ]]
    [[ $(podman exec c1 cat /etc/resolv.conf) == *192.0.2.53* ]]
    web c2 --network web
    [[ $(address_of c2 web) == 10.50.0.129 ]]
    podman rm --force --time 0 c1 c2
    nothing_is_left
}

test_two_networks_each_have_a_route_and_the_port() {
    podman network create --driver cnibox one
    podman network create --driver cnibox two
    web c1 --network one --network two -p 8080:80
    # podman 5.4 names the interfaces in any order.
    podman exec c1 ip route | grep -E '^default via 10\.89\.0\.1 dev eth[01] +metric 100'
    podman exec c1 ip route | grep -E '^default via 10\.89\.1\.1 dev eth[01] +metric 100'
    serves 127.0.0.1:8080 10.89.0.1:8080 10.89.1.1:8080
    podman rm --force --time 0 c1
    nothing_is_left
}

test_a_network_is_connected_and_disconnected() {
    podman network create --driver cnibox one
    podman network create --driver cnibox two
    web c1 --network one
    podman network connect two c1
    serves "$(address_of c1 two)"
    podman network disconnect two c1
    not grep eth1 <<<"$(podman exec c1 ip link)"
    serves "$(address_of c1 one)"
    podman rm --force --time 0 c1
    nothing_is_left
}

test_a_reload_brings_back_rules_that_were_flushed() {
    podman network create --driver cnibox web
    web c1 --network web -p 8080:80
    nft flush ruleset
    not page 127.0.0.1:8080 2
    podman network reload c1
    serves 127.0.0.1:8080
    nft flush ruleset
    cnibox reconcile
    serves 127.0.0.1:8080
    podman rm --force --time 0 c1
    nothing_is_left
}

test_restarts_keep_the_port() {
    podman network create --driver cnibox web
    web c1 --network web -p 8080:80
    podman stop --time 0 c1
    nothing_is_left
    podman start c1
    eventually serves 127.0.0.1:8080
    podman restart --time 0 c1
    eventually serves 127.0.0.1:8080
    podman rm --force --time 0 c1
    nothing_is_left
}

test_a_pod_has_one_address_and_its_ports() {
    podman network create --driver cnibox web
    podman pod create --infra-image "$image" --infra-command '/bin/sleep 1000' --name p1 --network web -p 8080:80
    podman run --detach --pod p1 --name c1 "$image" /bin/httpd -f -p 80 -h /www
    eventually serves 127.0.0.1:8080
    podman pod rm --force --time 0 p1
    nothing_is_left
}

test_a_network_of_a_file_is_used() {
    cnibox networks create --subnet 10.70.0.0/24 mynet
    podman network create --driver cnibox --opt network=mynet nb
    web c1 --network nb -p 8080:80
    serves 127.0.0.1:8080
    [[ $(address_of c1 nb) == 10.70.0.* ]]
    [[ $(cnibox attachments) == *'mynet '* ]]
    podman rm --force --time 0 c1
    nothing_is_left
}

# A driver that kills podman at the end of each setup.
driver_kills_podman() {
    rm /usr/libexec/netavark/cnibox
    cat >/usr/libexec/netavark/cnibox <<-'SH'
	#!/bin/sh
	/usr/bin/cnibox "$@"
	case $1 in setup) kill -KILL $(pidof podman) ;; esac
	SH
    chmod +x /usr/libexec/netavark/cnibox
}

driver_is_ours() {
    ln -sf ../../bin/cnibox /usr/libexec/netavark/cnibox
}

test_killed_processes_leave_nothing() {
    local pid
    podman network create --driver cnibox web
    web c1 --network web -p 8080:80
    pid=$(podman inspect --format '{{.State.Pid}}' c1)
    kill -KILL "$(podman inspect --format '{{.State.ConmonPid}}' c1)"
    kill -KILL "$pid"
    podman rm --force --time 0 c1 || podman rm --force --time 0 c1
    nothing_is_left
    # podman is killed after the setup, before it knows.
    podman create --name c2 --network web -p 8080:80 "$image" /bin/httpd -f -p 80 -h /www
    driver_kills_podman
    not podman start c2
    driver_is_ours
    [[ $(cnibox attachments --json | grep -c containerID) == 1 ]]
    podman start c2
    eventually serves 127.0.0.1:8080
    [[ $(cnibox attachments --json | grep -c containerID) == 1 ]]
    podman rm --force --time 0 c2
    cnibox gc
    nothing_is_left
}

test_a_restarted_host_starts_its_containers_again() {
    podman network create --driver cnibox web
    web c1 --network web -p 8080:80
    web c2 --network web -p 8082:80
    restart_host
    podman start c1
    eventually serves 127.0.0.1:8080
    podman rm --force --time 0 c1 c2
    cnibox gc
    nothing_is_left
}

test_a_taken_port_is_refused() {
    podman network create --driver cnibox web
    web c1 --network web -p 8080:80
    not podman run --detach --name c2 --network web -p 8080:80 "$image" /bin/sleep 1000 2>/tmp/error
    grep 8080 /tmp/error
    podman rm --force --time 0 c1 c2
    nothing_is_left
}

test_forty_containers_at_once_all_have_an_address() {
    local number
    podman network create --driver cnibox web
    for number in {1..40}; do
        podman run --detach --name "c$number" --network web "$image" /bin/sleep 1000 >/dev/null &
    done
    wait
    for number in {1..40}; do address_of "c$number" web; done | grep . | sort | uniq | wc -l | grep -qx 40
    podman rm --force --all --time 0
    nothing_is_left
}
