# Containers find each other by name: our plugin dnsname runs aardvark-dns at the gateway of each network.

readonly engine_files=/run/cnibox/names/aardvark engine=/usr/lib/podman/aardvark-dns

# Ids of our aardvark-dns. netavark's has other files.
engines() {
    pgrep --full -- "aardvark-dns --config $engine_files" || true
}

engine_is_other_than() {
    [[ $(engines) =~ ^[0-9]+$ && $(engines) != "$1" ]]
}

# Of containers and of their names there is nothing left.
no_name_is_left() {
    [[ -z $(engines) ]]
    [[ -z $(find /run/cnibox/names -mindepth 1 2>/dev/null) ]]
    nothing_is_left
}

# What nslookup of busybox says: the addresses in one line, the error, or `nothing`. It asks for both families.
answer() {
    sed -nE "/^Name:/,\$s/^Address[ 0-9]*: *//p; s/^\*\* server can't find .*: *//p" | sort -u | paste -sd ' ' | grep . || echo nothing
}

# asked CONTAINER NAME [SERVER]: the answer in the container, of the servers that podman gave it if no other is given.
asked() {
    podman exec "$1" /bin/busybox nslookup "${@:2}" 2>/dev/null | answer
}

# asked_from CONTAINER NAME SERVER: the same without podman, which takes longer.
asked_from() {
    nsenter --net="$(netns_of "$1")" busybox nslookup "${@:2}" 2>/dev/null | answer
}

netns_of() {
    podman inspect --format '{{.NetworkSettings.SandboxKey}}' "$1"
}

# addresses_of CONTAINER NETWORK: those of both families, as `answer` prints them.
addresses_of() {
    podman inspect --format "{{with index .NetworkSettings.Networks \"$2\"}}{{.IPAddress}} {{.GlobalIPv6Address}}{{end}}" "$1" |
        tr ' ' '\n' | sed '/^$/d' | sort -u | paste -sd ' '
}

servers_of() {
    podman exec "$1" cat /etc/resolv.conf | sed -n 's/^nameserver //p'
}

# fetches CONTAINER NAME: the page of the container with this name.
fetches() {
    [[ $(podman exec "$1" wget -qO- "http://$2/") == hello ]]
}

# upstream ADDRESS NAME ANSWER [COMMAND...]: a server outside of the networks, which notes queries in /run/upstream-ADDRESS.
upstream() {
    "${@:4}" dnsmasq --no-daemon --conf-file=/dev/null --no-resolv --no-hosts --user=root --pid-file= --bind-interfaces \
        --listen-address="$1" --local=/#/ --host-record="$2,$3" --log-queries --log-facility="/run/upstream-$1" &
    eventually grep started "/run/upstream-$1"
}

# host_upstream: that of the host, which is asked for what is no name of a container.
host_upstream() {
    upstream 127.0.0.1 out.example 192.0.2.1
    rm -f /etc/resolv.conf
    echo 'nameserver 127.0.0.1' >/etc/resolv.conf
}

# begin_asking CONTAINER SERVER RATE NAME=ADDRESS...: asks all the time (asker.py).
begin_asking() {
    nsenter --net="$(netns_of "$1")" python3 /tmp/tests/asker.py "${@:2}" >/run/asked &
    asker=$!
}

end_asking() {
    kill "$asker"
    wait "$asker"
    read -r sent lost wrong unanswered longest </run/asked
    echo "measured: $sent queries, $lost lost, $wrong wrong, $unanswered without an answer after repetitions, longest pause $longest ms"
}

test_names_aliases_and_short_ids_are_found_in_both_families_after_restarts() {
    local names name
    host_upstream
    podman network create --driver cnibox --ipv6 web
    [[ $(podman network inspect --format '{{.DNSEnabled}}' web) == true ]]
    web c1 --network web --network-alias page --network-alias www
    web c2 --network web
    name=$(podman inspect --format '{{.Id}}' c1)
    names=(c1 page www "${name::12}")
    [[ $(addresses_of c1 web) == *.*:* ]]
    for name in "${names[@]}" "${names[@]/%/.dns.podman}"; do [[ $(asked c2 "$name") == "$(addresses_of c1 web)" ]]; done
    for name in "${names[@]}"; do fetches c2 "$name"; done
    for name in $(servers_of c2); do [[ $(asked c2 c1 "$name") == "$(addresses_of c1 web)" ]]; done
    [[ $(servers_of c2 | wc -l) == 2 ]]
    [[ $(asked c1 c2) == "$(addresses_of c2 web)" ]]
    podman restart --time 0 c1
    for name in "${names[@]}"; do [[ $(asked c2 "$name") == "$(addresses_of c1 web)" ]]; done
    podman stop --time 0 c1
    for name in "${names[@]}"; do [[ $(asked c2 "$name") == NXDOMAIN ]]; done
    podman start c1
    for name in "${names[@]}"; do [[ $(asked c2 "$name") == "$(addresses_of c1 web)" ]]; done
    eventually fetches c2 page
    podman rm --force --time 0 c1
    for name in "${names[@]}"; do [[ $(asked c2 "$name") == NXDOMAIN ]]; done
    [[ $(asked c2 c2) == "$(addresses_of c2 web)" ]]
    podman rm --force --time 0 c2
    no_name_is_left
}

# compose COMMAND...: for the file of `shop`.
compose() {
    podman-compose --in-pod false --file /tmp/compose.yaml --project-name shop "$@"
}

# shop DRIVER: starts three services, one of them twice, and writes who finds whom to /run/found-DRIVER: container, name, containers found.
shop() {
    local container name
    cat >/tmp/compose.yaml <<-YAML
	services:
	  web: {image: $image, command: [/bin/httpd, -f, -p, "80", -h, /www], networks: {inside: {aliases: [www, page]}}}
	  db: {image: $image, command: [/bin/httpd, -f, -p, "80", -h, /www], networks: {inside: {aliases: [data]}}}
	  cache:
	    {image: $image, command: [/bin/sleep, "1000"], deploy: {mode: replicated, replicas: 2}, networks: {inside: {aliases: [fast]}}}
	networks:
	  inside: {driver: $1, ipam: {config: [{subnet: 10.50.0.0/24}]}}
	YAML
    compose up --detach
    podman ps --format '{{.Names}}' | sort >/run/containers.txt
    while read -r container; do
        printf 's/\\b%s\\b/%s/g\n' "$(address_of "$container" shop_inside)" "$container"
    done </run/containers.txt >/run/as-names
    while read -r container; do
        for name in web www page db data cache fast $(</run/containers.txt) web.dns.podman out.example nobody; do
            echo "$container $name $(asked "$container" "$name" | sed -f /run/as-names | tr ' ' '\n' | sort | paste -sd ' ')"
        done
    done </run/containers.txt >"/run/found-$1"
    compose down --timeout 0
    not podman network exists shop_inside
}

# found NAME: how many containers find whom by a name.
found() {
    awk -v name="$1" '$2 == name' /run/found-cnibox | cut -d ' ' -f 3- | sort | uniq -c | sed 's/^ *//'
}

test_names_of_a_compose_file_are_those_of_netavarks_bridge() {
    local name
    host_upstream
    shop cnibox
    no_name_is_left
    for name in web www page web.dns.podman shop_web_1; do [[ $(found "$name") == '4 shop_web_1' ]]; done
    for name in db data shop_db_1; do [[ $(found "$name") == '4 shop_db_1' ]]; done
    for name in cache fast; do [[ $(found "$name") == '4 shop_cache_1 shop_cache_2' ]]; done
    for name in shop_cache_1 shop_cache_2; do [[ $(found "$name") == "4 $name" ]]; done
    [[ $(found out.example) == '4 192.0.2.1' ]]
    [[ $(found nobody) == '4 NXDOMAIN' ]]
    shop bridge
    diff /run/found-cnibox /run/found-bridge
}

test_names_of_both_networks_of_a_container_are_found_at_either_server() {
    local server
    host_upstream
    podman network create --driver cnibox one
    podman network create --driver cnibox two
    web c1 --network one
    web c2 --network two
    web both --network one --network two
    [[ $(servers_of both | sort | paste -sd ' ') == '10.89.0.1 10.89.1.1' ]]
    for server in 10.89.0.1 10.89.1.1; do
        [[ $(asked both c1 "$server") == "$(address_of c1 one)" ]]
        [[ $(asked both c2 "$server") == "$(address_of c2 two)" ]]
    done
    [[ $(asked c1 both) == "$(address_of both one)" ]]
    [[ $(asked c2 both) == "$(address_of both two)" ]]
    [[ $(asked c1 c2) == NXDOMAIN ]]
    podman network connect --alias guest two c1
    [[ $(asked c2 guest) == "$(address_of c1 two)" ]]
    [[ $(asked c2 c1) == "$(address_of c1 two)" ]]
    [[ $(asked c1 c2) == "$(address_of c2 two)" ]]
    podman network disconnect two c1
    for server in guest c1; do [[ $(asked c2 "$server") == NXDOMAIN ]]; done
    [[ $(asked c1 c2) == NXDOMAIN ]]
    [[ $(asked both c1) == "$(address_of c1 one)" ]]
    podman rm --force --time 0 c1 c2 both
    no_name_is_left
}

# An image with the resolver of glibc, which asks the servers of resolv.conf in their order.
make_image_with_getent() {
    local file
    for file in /usr/bin/getent $(ldd /usr/bin/getent | grep -oE '/[^ ]+'); do
        install -D "$(realpath "$file")" "/tmp/image$file"
    done
    tar --directory /tmp/image --create . | podman import --quiet - localhost/getent >/dev/null
}

test_names_of_the_first_network_are_found_beside_a_network_of_netavark() {
    local first
    local -A name_at=([10.89.0.1]=c1 [10.89.1.1]=c2)
    host_upstream
    make_image_with_getent
    podman network create --driver cnibox ours
    podman network create theirs
    web c1 --network ours
    web c2 --network theirs
    podman run --detach --name both --network ours --network theirs localhost/getent /bin/sleep 1000
    [[ $(servers_of both | sort | paste -sd ' ') == '10.89.0.1 10.89.1.1' ]]
    first=$(servers_of both | head -n 1)
    [[ $(podman exec both getent hosts "${name_at[$first]}") == 10.89.*" ${name_at[$first]}.dns.podman" ]]
    # Each server answers the names of its own network.
    [[ $(asked both c1 10.89.0.1) == "$(address_of c1 ours)" ]]
    [[ $(asked both c2 10.89.1.1) == "$(address_of c2 theirs)" ]]
    [[ $(asked both c2.dns.podman 10.89.0.1) == NXDOMAIN ]]
    [[ $(asked both c1.dns.podman 10.89.1.1) == NXDOMAIN ]]
    [[ $(asked c1 both) == "$(address_of both ours)" ]]
    [[ $(asked c2 both) == "$(address_of both theirs)" ]]
    podman rm --force --time 0 c1 both
    [[ -z $(engines) ]]
    [[ $(asked c2 c2) == "$(address_of c2 theirs)" ]]
    podman rm --force --time 0 c2
    no_name_is_left
}

test_names_are_answered_again_soon_after_the_engine_is_killed() {
    local kills=5 number before watcher
    podman network create --driver cnibox web
    web c1 --network web
    web c2 --network web
    cnibox reconcile --watch &
    watcher=$!
    begin_asking c2 10.89.0.1 100 "c1=$(address_of c1 web)"
    sleep 3
    for ((number = 0; number < kills; number++)); do
        before=$(engines)
        kill -KILL "$before"
        eventually engine_is_other_than "$before"
        sleep 3
    done
    end_asking
    # A second for each start.
    ((sent >= 1500 && lost <= kills * 100 && wrong == 0 && unanswered == 0 && longest <= 1000))
    ((lost >= kills))
    kill "$watcher"
    wait "$watcher"
    podman rm --force --time 0 c1 c2
    no_name_is_left
}

# churn WORKER COUNT: starts and removes containers one after another. Each is found while it is there, and not afterwards.
churn() {
    local number name id
    for ((number = 0; number < $2; number++)); do
        name=n$1-$number
        id=$(podman run --detach --name "$name" --network web "$image" /bin/sleep 1000)
        [[ $(asked_from keeper "$name" 10.89.0.1) == "$(address_of "$name" web)" ]]
        podman rm --force --time 0 "$name" >/dev/null
        [[ $(asked_from keeper "$name.dns.podman" 10.89.0.1) == NXDOMAIN ]]
        [[ $(asked_from keeper "${id::12}.dns.podman" 10.89.0.1) == NXDOMAIN ]]
    done
}

test_names_of_200_containers_are_right_while_8_start_and_end_at_once() {
    local worker workers=() before begin
    host_upstream
    podman network create --driver cnibox --subnet 10.89.0.0/22 web
    for worker in keeper c1 c2; do web "$worker" --network web; done
    before=$(engines)
    begin_asking keeper 10.89.0.1 50 "c1=$(address_of c1 web)" "c2=$(address_of c2 web)"
    begin=$SECONDS
    for worker in {1..8}; do
        churn "$worker" 25 &
        workers+=($!)
    done
    for worker in "${workers[@]}"; do wait "$worker"; done
    echo "measured: 200 containers in $((SECONDS - begin)) s"
    end_asking
    # A reload of the engine can lose a query. A resolver repeats it.
    ((sent > 100 && wrong == 0 && unanswered == 0))
    [[ $(engines) == "$before" ]]
    podman rm --force --time 0 keeper c1
    [[ $(engines) == "$before" ]]
    podman rm --force --time 0 c2
    no_name_is_left
}

test_names_are_back_after_a_restart_of_the_host() {
    local name
    podman network create --driver cnibox --ipv6 web
    web c1 --network web --network-alias page
    web c2 --network web
    restart_host
    [[ -z $(engines) && ! -e /run/cnibox ]]
    host_upstream
    podman start c2
    [[ $(asked c2 c1) == NXDOMAIN ]]
    podman start c1
    for name in c1 page; do [[ $(asked c2 "$name") == "$(addresses_of c1 web)" ]]; done
    [[ $(asked c1 c2) == "$(addresses_of c2 web)" ]]
    podman rm --force --time 0 c1 c2
    cnibox gc
    no_name_is_left
}

test_names_of_a_container_whose_processes_were_killed_are_removed_by_gc() {
    local name
    host_upstream
    podman network create --driver cnibox web
    podman run --detach --name c1 --network web --network-alias page "$image" /bin/nc -l -p 81
    web c2 --network web
    [[ $(asked c2 page) == "$(address_of c1 web)" ]]
    kill -KILL "$(podman inspect --format '{{.State.ConmonPid}}' c1)" "$(podman inspect --format '{{.State.Pid}}' c1)"
    eventually not pgrep -x nc
    [[ $(cnibox gc) == *'removed eth0'* ]]
    for name in c1 page; do [[ $(asked c2 "$name") == NXDOMAIN ]]; done
    [[ $(asked c2 c2) == "$(address_of c2 web)" ]]
    podman rm --force --time 0 c2
    podman rm --force --time 0 c1 || podman rm --force --time 0 c1
    no_name_is_left
}

# has_no_names NETWORK REASON: it is created nevertheless, and its containers are connected.
has_no_names() {
    podman network create --driver cnibox "$1" 2>/tmp/error
    cat /tmp/error
    grep -F "note: containers of network $1 do not find each other by name: cannot find aardvark-dns: $2" /tmp/error
    grep -F 'the names of containers need aardvark-dns 1.13 or later, which is the package aardvark-dns' /tmp/error
    [[ $(podman network inspect --format '{{.DNSEnabled}}' "$1") == false ]]
    web "$1-1" --network "$1" -p 8080:80
    web "$1-2" --network "$1"
    serves 127.0.0.1:8080 "$(address_of "$1-1" "$1")"
    fetches "$1-2" "$(address_of "$1-1" "$1")"
    podman rm --force --time 0 "$1-1" "$1-2"
    no_name_is_left
}

test_names_need_an_engine_that_is_new_enough() {
    mv "$engine" /tmp/engine
    has_no_names missing 'it is not installed'
    printf '#!/bin/sh\necho aardvark-dns 1.4.0\n' >"$engine"
    chmod +x "$engine"
    has_no_names old "$engine is release 1.4"
    mv /tmp/engine "$engine"
    podman network create --driver cnibox web
    [[ $(podman network inspect --format '{{.DNSEnabled}}' web) == true ]]
    # A network that has no names keeps having none.
    podman run --detach --name c1 --network old "$image" /bin/sleep 1000
    [[ -z $(engines) ]]
    podman rm --force --time 0 c1
    no_name_is_left
}

test_names_of_an_internal_network_are_found_and_nothing_else_is_asked_for() {
    host_upstream
    podman network create --driver cnibox --internal inside
    podman network create --driver cnibox outside
    web c1 --network inside
    web c2 --network inside
    web c3 --network outside
    [[ $(asked c2 c1) == "$(address_of c1 inside)" ]]
    [[ $(asked c2 out.example) == NXDOMAIN ]]
    [[ $(asked c2 nobody) == NXDOMAIN ]]
    not grep -F query /run/upstream-127.0.0.1
    # The same host is asked for the other network.
    [[ $(asked c3 out.example) == 192.0.2.1 ]]
    grep 'query\[A\] out.example' /run/upstream-127.0.0.1
    podman rm --force --time 0 c1 c2 c3
    no_name_is_left
}

test_names_of_others_are_asked_for_at_the_servers_of_the_network() {
    make_lan
    ip address add 10.60.0.2/24 dev lan
    on_lan ip address add 10.60.0.3/24 dev eth0
    host_upstream
    upstream 10.60.0.1 out.example 192.0.2.2 on_lan
    upstream 10.60.0.3 out.example 192.0.2.3 on_lan
    podman network create --driver cnibox --dns 10.60.0.1 given
    podman network create --driver cnibox added
    web c1 --network given
    web c2 --network added
    [[ $(servers_of c1) == 10.89.0.1 ]]
    [[ $(asked c1 out.example) == 192.0.2.2 ]]
    [[ $(asked c2 out.example) == 192.0.2.1 ]]
    podman network update --dns-add 10.60.0.3 added
    [[ $(podman network inspect --format '{{.NetworkDNSServers}}' added) == '[10.60.0.3]' ]]
    web c3 --network added
    [[ $(servers_of c3) == 10.89.1.1 ]]
    [[ $(asked c3 out.example) == 192.0.2.3 ]]
    [[ $(asked c3 c2) == "$(address_of c2 added)" ]]
    [[ $(asked c1 out.example) == 192.0.2.2 ]]
    podman rm --force --time 0 c1 c2 c3
    no_name_is_left
}

# user_asked CONTAINER NAME
user_asked() {
    as_user podman exec "$1" /bin/busybox nslookup "$2" 2>/dev/null | answer
}

test_names_without_root_are_found() {
    prepare_user
    as_user podman network create --driver cnibox web
    as_user podman network create --driver cnibox --disable-dns plain
    # It keeps the networks of the user.
    as_user podman run --detach --name c0 --network plain "$image" /bin/sleep 1000
    as_user podman run --detach --name c1 --network web:ip=10.89.0.77 --network-alias page "$image" /bin/httpd -f -p 80 -h /www
    as_user podman run --detach --name c2 --network web:ip=10.89.0.78 "$image" /bin/sleep 1000
    [[ $(user_asked c2 c1) == 10.89.0.77 ]]
    [[ $(user_asked c2 page) == 10.89.0.77 ]]
    [[ $(user_asked c1 c2) == 10.89.0.78 ]]
    [[ $(ps -o user= -p "$(engines)") == user && ! -e /run/cnibox/names ]]
    as_user podman restart --time 0 c1
    [[ $(user_asked c2 page) == 10.89.0.77 ]]
    as_user podman rm --force --time 0 c1
    [[ $(user_asked c2 c2) == 10.89.0.78 && $(user_asked c2 page) == NXDOMAIN ]]
    as_user podman rm --force --time 0 c2
    [[ -z $(engines) ]]
    [[ -z $(inside find /run/cnibox/names -mindepth 1) ]]
    as_user podman rm --force --time 0 c0
    [[ -z $(find /run/user/1000 -path '*cnibox/names/*') ]]
}

test_names_of_a_pod_of_kube_and_of_its_container_are_found() {
    host_upstream
    podman network create --driver cnibox --subnet 10.50.0.0/24 web
    cat >/tmp/pod.yaml <<-YAML
	apiVersion: v1
	kind: Pod
	metadata: {name: p1}
	spec:
	  containers:
	  - {name: page, image: $image, imagePullPolicy: Never, command: [/bin/httpd, -f, -p, "80", -h, /www]}
	YAML
    tar --directory /tmp/image --create . | podman import --quiet --change 'ENTRYPOINT ["/bin/sleep", "1000"]' - localhost/infra
    printf '[engine]\ninfra_image = "localhost/infra"\n' >/tmp/infra.conf
    web c1 --network web
    CONTAINERS_CONF_OVERRIDE=/tmp/infra.conf podman kube play --network web:ip=10.50.0.9 /tmp/pod.yaml
    [[ $(asked c1 p1) == 10.50.0.9 ]]
    [[ $(asked c1 page) == 10.50.0.9 ]]
    eventually fetches c1 page
    [[ $(asked p1-page c1) == "$(address_of c1 web)" ]]
    podman kube down /tmp/pod.yaml
    [[ $(asked c1 p1) == NXDOMAIN && $(asked c1 page) == NXDOMAIN ]]
    podman rm --force --time 0 c1
    no_name_is_left
}

test_names_of_the_units_of_quadlet_outlive_a_stop_of_the_first_unit() {
    local before
    boot_quadlet
    before=$(engines)
    machine podman run --detach --name c1 --network systemd-web "$image" /bin/sleep 1000
    [[ $(machine podman exec c1 /bin/busybox nslookup systemd-page | answer) == 10.50.0.9 ]]
    # The unit of the container that started the engine.
    machine systemctl stop page
    [[ $(machine podman exec c1 /bin/busybox nslookup c1 | answer) == 10.50.0.* ]]
    [[ $(machine podman exec c1 /bin/busybox nslookup systemd-page | answer) == NXDOMAIN ]]
    machine systemctl start page
    eventually serves 10.50.0.9
    [[ $(machine podman exec c1 /bin/busybox nslookup systemd-page | answer) == 10.50.0.9 ]]
    [[ $(engines) == "$before" ]]
    machine systemctl stop page
    machine podman rm --force --time 0 c1
    no_name_is_left
}

# input_rules: those of both families that are ours.
input_rules() {
    { iptables-nft -S INPUT; ip6tables-nft -S INPUT; } | grep -F 'cnibox: names of network' || true
}

test_names_are_answered_by_a_host_that_drops_input() {
    local program
    for program in iptables-nft ip6tables-nft; do
        "$program" -P INPUT DROP
        "$program" -A INPUT -i lo -j ACCEPT
    done
    ip6tables-nft -A INPUT -p icmpv6 -j ACCEPT
    host_upstream
    podman network create --driver cnibox --ipv6 web
    web c1 --network web
    web c2 --network web
    [[ $(servers_of c2 | wc -l) == 2 ]]
    for program in $(servers_of c2); do [[ $(asked c2 c1 "$program") == "$(addresses_of c1 web)" ]]; done
    [[ $(asked c2 out.example) == 192.0.2.1 ]]
    # Other packets are dropped.
    busybox httpd -p 8088 -h /tmp/image/www
    not podman exec c2 wget -qO- -T 2 http://10.89.0.1:8088/
    [[ $(input_rules | grep -c -- '--dport 53') == 4 ]]
    podman rm --force --time 0 c1
    [[ $(input_rules | grep -c -- '--dport 53') == 4 ]]
    podman rm --force --time 0 c2
    [[ -z $(input_rules) ]]
    [[ $(iptables-nft -S INPUT) == $'-P INPUT DROP\n-A INPUT -i lo -j ACCEPT' ]]
    no_name_is_left
}

test_names_are_answered_beside_firewalld_and_by_reconcile_after_its_reload() {
    local server reload
    host_upstream
    mkdir -p /run/dbus
    dbus-daemon --system --fork --nopidfile
    firewalld --nofork --nopid &
    eventually firewall-cmd --state
    podman network create --driver cnibox --ipv6 web
    web c1 --network web
    web c2 --network web
    [[ $(servers_of c2 | wc -l) == 2 ]]
    for reload in --state --reload --complete-reload; do
        firewall-cmd "$reload"
        # A reload forgets the sources of zones that are not permanent. netavark's bridge answers no names then, either.
        cnibox reconcile
        [[ $(firewall-cmd --zone=trusted --list-sources) == *"$(address_of c2 web)"* ]]
        for server in $(servers_of c2); do [[ $(asked c2 c1 "$server") == "$(addresses_of c1 web)" ]]; done
    done
    podman rm --force --time 0 c1 c2
    [[ -z $(firewall-cmd --zone=trusted --list-sources) ]]
    no_name_is_left
}
