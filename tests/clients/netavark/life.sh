# What containers and networks leave when podman removes them, and what a restart brings back.

test_a_prune_removes_stopped_containers_and_unused_networks() {
    podman network create --driver cnibox one
    podman network create --driver cnibox two
    web c1 --network one -p 8080:80
    web c2 --network two
    podman stop --time 0 c2
    podman system prune --force
    [[ $(podman network ls --format '{{.Name}}') == one*podman ]]
    [[ $(podman ps --all --format '{{.Names}}') == c1 ]]
    serves 127.0.0.1:8080
    podman rm --force --time 0 c1
    podman system prune --force
    nothing_is_left
}

test_a_killed_process_is_restarted_with_its_port() {
    local before
    podman network create --driver cnibox web
    web c1 --network web -p 8080:80 --restart on-failure
    before=$(podman inspect --format '{{.State.Pid}}' c1)
    kill -KILL "$before"
    eventually serves 127.0.0.1:8080
    [[ $(podman inspect --format '{{.State.Pid}}' c1) != "$before" ]]
    [[ $(cnibox attachments --json | grep -c containerID) == 1 ]]
    serves 127.0.0.1:8080 "$(address_of c1 web)"
    podman rm --force --time 0 c1
    nothing_is_left
}

# A program with the arguments of conmon, which starts nothing.
conmon_starts_nothing() {
    cat >/tmp/conmon <<-'SH'
	#!/bin/bash
	case $* in *--version*) exec /usr/bin/conmon --version ;; esac
	exec -a "conmon $*" sleep 1000
	SH
    chmod +x /tmp/conmon
}

attachments_are() {
    [[ $(cnibox attachments --json | grep -c containerID) == "$1" ]]
}

test_a_namespace_that_podman_left_behind_is_removed() {
    local output
    podman network create --driver cnibox web
    web c1 --network web -p 8081:80
    # podman is killed before it knows of the namespace, and then forgets the container.
    podman create --name c2 --network web -p 8080:80 "$image" /bin/httpd -f -p 80 -h /www
    driver_kills_podman
    not podman start c2
    eventually not pidof netavark
    driver_is_ours
    podman rm --force --time 0 c2
    [[ $(find /run/netns -name 'netns-*' | wc -l) == 2 ]]
    attachments_are 2
    output=$(cnibox gc --dry-run)
    [[ $output == *'would remove namespace /run/netns/netns-'*': podman and all processes of the container have ended'* ]]
    attachments_are 2
    output=$(cnibox gc)
    [[ $output == *'removed namespace /run/netns/netns-'* ]]
    attachments_are 1
    [[ $(find /run/netns -name 'netns-*' | wc -l) == 1 ]]
    serves 127.0.0.1:8081
    podman run --rm --network web -p 8080:80 "$image" /bin/sh -c :
    podman rm --force --time 0 c1
    nothing_is_left
}

test_a_container_that_podman_may_still_start_keeps_its_namespace() {
    local podman conmon output
    conmon_starts_nothing
    podman network create --driver cnibox web
    podman create --name c1 --network web -p 8080:80 "$image" /bin/httpd -f -p 80 -h /www
    podman --conmon /tmp/conmon start c1 &
    podman=$!
    eventually pgrep -f '^conmon .* -c '
    conmon=$(pgrep -f '^conmon .* -c ')
    [[ -z $(cnibox gc) ]]
    attachments_are 1
    kill -KILL "$podman"
    wait "$podman" || true
    # conmon has the id of the container in its arguments.
    [[ -z $(cnibox gc) ]]
    attachments_are 1
    kill -KILL "$conmon"
    # The kernel ends it some time after the signal.
    eventually not pgrep -f '^conmon .* -c '
    output=$(cnibox gc)
    [[ $output == *'removed namespace /run/netns/netns-'* ]]
    nothing_is_left
    # podman had noted the namespace.
    not podman start c1 2>/tmp/error
    grep 'No such file or directory' /tmp/error
    podman start c1
    eventually serves 127.0.0.1:8080
    # The container outlives the podman that started it, and conmon.
    kill -KILL "$(podman inspect --format '{{.State.ConmonPid}}' c1)"
    [[ -z $(cnibox gc) ]]
    serves 127.0.0.1:8080
    podman rm --force --time 0 c1 || podman rm --force --time 0 c1
    nothing_is_left
}

test_a_network_in_use_is_not_removed() {
    podman network create --driver cnibox web
    web c1 --network web -p 8080:80
    not podman network rm web
    serves 127.0.0.1:8080
    podman network rm --force --time 0 web
    not podman container exists c1
    nothing_is_left
}

# both NAME: the container is reachable in both networks, and has one default route for each, of which one is used.
both() {
    serves "$(address_of "$1" ours)" "$(address_of "$1" theirs)"
    podman exec "$1" ip route
    [[ $(podman exec "$1" ip route | grep -c '^default') == "$2" ]]
    [[ $(podman exec "$1" ip route | grep '^default' | grep -c 'metric 100') == "$2" ]]
}

test_a_network_of_netavark_and_ours_are_in_one_container() {
    podman network create --driver cnibox ours
    podman network create theirs
    web c1 --network ours --network theirs -p 8080:80
    web c2 --network theirs --network ours -p 8081:80
    both c1 2
    both c2 2
    serves 127.0.0.1:8080 127.0.0.1:8081
    [[ $(podman exec c1 wget -qO- "http://$(address_of c2 ours)/") == hello ]]
    [[ $(podman exec c1 wget -qO- "http://$(address_of c2 theirs)/") == hello ]]
    podman network disconnect theirs c1
    serves 127.0.0.1:8080
    podman rm --force --time 0 c1
    serves 127.0.0.1:8081
    podman rm --force --time 0 c2
    nothing_is_left
}

test_a_reload_of_firewalld_keeps_the_ports() {
    local reload
    mkdir -p /run/dbus
    dbus-daemon --system --fork --nopidfile
    firewalld --nofork --nopid &
    eventually firewall-cmd --state
    podman network create --driver cnibox web
    web c1 --network web -p 8080:80
    for reload in --state --reload --complete-reload; do
        firewall-cmd "$reload"
        serves 127.0.0.1:8080 10.89.0.1:8080 "$(address_of c1 web)"
        [[ $(podman run --rm --network web "$image" wget -qO- "http://$(address_of c1 web)/") == hello ]]
    done
    podman network reload c1
    serves 127.0.0.1:8080
    podman rm --force --time 0 c1
    nothing_is_left
}
