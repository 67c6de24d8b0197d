# Times netavark's bridge and our driver in turn, for containers with one published port (tests/clients/netavark/run --measure ROUNDS). Netavark calls
# the driver, so its own start is in both columns. A part of podman.sh.

readonly times=/tmp/times netavark=/usr/lib/podman/netavark

# request NETWORK CONTAINER PORT [OPTION]: what podman writes to netavark.
request() {
    cat <<-JSON
	{"container_id": "$2", "container_name": "$2", "networks": {"$1": {"interface_name": "eth0"${4:-}}},
	 "port_mappings": [{"container_port": 80, "host_ip": "", "host_port": $3, "protocol": "tcp", "range": 1}],
	 "network_info": {"$1": $(podman network inspect "$1" | sed '1d; $d')}}
	JSON
}

# call VERB NETWORK CONTAINER
call() {
    "$netavark" --config /run/netavark --rootless=false --aardvark-binary /usr/lib/podman/aardvark-dns \
        --plugin-directory /usr/libexec/netavark "$1" "/run/netns/$3" <"/tmp/$2-$3.json" >/dev/null
}

# timed NAME COMMAND...: appends the time in microseconds.
timed() {
    local start=${EPOCHREALTIME/./}
    "${@:2}"
    echo $((${EPOCHREALTIME/./} - start)) >>"$times/$1"
}

# median NAME: in microseconds.
median() {
    sort -n "$times/$1" | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'
}

prepare_requests() {
    local name
    mkdir -p "$times" /run/netavark
    for name in c1 theirs ours; do ip netns add "$name"; done
    # netavark's bridge serves no names either.
    podman network create --disable-dns --subnet 10.60.0.0/24 theirs >/dev/null
    podman network create --driver cnibox --subnet 10.61.0.0/24 ours >/dev/null
    # podman chooses the addresses of netavark's bridge.
    request theirs c1 8081 ', "static_ips": ["10.60.0.11"]' >/tmp/theirs-c1.json
    request theirs theirs 8082 ', "static_ips": ["10.60.0.12"]' >/tmp/theirs-theirs.json
    request ours c1 8081 >/tmp/ours-c1.json
    request ours ours 8083 >/tmp/ours-ours.json
}

# rounds COUNT SUFFIX: setup and teardown of one container.
rounds() {
    local round network
    for ((round = 0; round < $1; round++)); do
        for network in theirs ours; do
            timed "setup$2-$network" call setup "$network" c1
            timed "teardown$2-$network" call teardown "$network" c1
        done
    done
}

measure() {
    local count=$commands name round network
    prepare_requests
    rounds "$count" ''
    for network in theirs ours; do call setup "$network" "$network"; done
    rounds "$count" '-beside'
    for network in theirs ours; do call teardown "$network" "$network"; done
    for ((round = 0; round < count; round++)); do
        timed run-none podman run --rm --network none "$image" /bin/busybox true
        for network in theirs ours; do
            timed "run-$network" podman run --rm --network "$network" --publish 8080:80 "$image" /bin/busybox true
        done
    done
    echo "| medians of $count, in ms | bridge of netavark | driver | ratio |"
    echo "|---|---:|---:|---:|"
    for name in setup:setup teardown:teardown 'setup beside another container:setup-beside' \
        'teardown beside another container:teardown-beside' 'podman run --rm:run'; do
        awk -v name="${name%:*}" -v theirs="$(median "${name#*:}-theirs")" -v ours="$(median "${name#*:}-ours")" \
            'BEGIN { printf "| %s | %.1f | %.1f | %.2f |\n", name, theirs / 1000, ours / 1000, ours / theirs }'
    done
    echo "podman run --rm without a network takes $(($(median run-none) / 1000)) ms"
}
