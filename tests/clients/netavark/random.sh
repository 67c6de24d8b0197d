# Random commands of podman and kills, in the middle a restart of the host; at the end, what cnibox has is what podman has.

# The owners of a command's output, one for a line: NETWORK ID INTERFACE.
owners_in_nftables() {
    nft list ruleset 2>/dev/null | grep -oE 'comment "[^ "]+ [0-9a-f]{64} [^ "]+"' | cut -d '"' -f 2 | sort -u
}

attachments() {
    cnibox attachments --json | tr -d ' ",' | awk -F : '
        $1 == "network" { network = $2 }
        $1 == "containerID" { id = $2 }
        $1 == "ifname" { print network, id, $2 }' | sort
}

# Those of the files of reserved addresses, and of the links on the host.
owners_of_addresses() {
    local file
    find /var/lib/cni/networks -type f -regex '.*/[0-9.]+' | while read -r file; do
        echo "$(basename "$(dirname "$file")") $(tr -d '\r' <"$file" | tr '\n' ' ' | sed 's/ $//')"
    done | sort
}

# What podman shows: NETWORK ID of running containers. The network nb is that of the file mynet.
networks_of_running() {
    podman ps --no-trunc --format '{{.ID}}' | while read -r id; do
        podman inspect --format "{{range \$name, \$_ := .NetworkSettings.Networks}}{{println \$name \"$id\"}}{{end}}" "$id"
    done | sed '/^$/d; s/^nb /mynet /' | sort
}

# Draws one of the arguments.
draw() {
    local all=("$@")
    drawn=${all[RANDOM % $#]}
}

# Sets `command`: a command of podman for a random container.
draw_command() {
    local name verb network other
    name=c$((RANDOM % 6 + 1))
    draw one two nb; network=$drawn
    draw one two nb; other=$drawn
    draw run run create; verb=$drawn
    if podman container exists "$name"; then
        draw start start restart restart stop rm rm connect disconnect reload; verb=$drawn
    fi
    case $verb in
    run | create)
        command=(podman "$verb" --name "$name" --network "$network" --publish "80${name#c}:80")
        if [[ $verb == run ]]; then command+=(--detach); fi
        if [[ $other != "$network" ]]; then command+=(--network "$other"); fi
        command+=("$image" /bin/httpd -f -p 80 -h /www) ;;
    start) command=(podman start "$name") ;;
    restart | stop) command=(podman "$verb" --time 0 "$name") ;;
    rm) command=(podman rm --force --time 0 "$name") ;;
    reload) command=(podman network reload "$name") ;;
    *) command=(podman network "$verb" "$network" "$name") ;;
    esac
}

# Kills the process or conmon of a random container that runs.
kill_one() {
    local running name pid
    mapfile -t running < <(podman ps --format '{{.Names}}')
    ((${#running[@]})) || return 0
    draw "${running[@]}"; name=$drawn
    draw .State.Pid .State.ConmonPid
    pid=$(podman inspect --format "{{$drawn}}" "$name")
    echo "kill: $drawn of $name"
    # podman shows 0 after a process that was killed before.
    ((pid == 0)) || kill -KILL "$pid" || true
}

# The kernel ends a namespace a moment after its last name.
gc_removes_nothing() {
    [[ -z $(cnibox gc | tee /dev/stderr) ]]
}

test_after_random_commands_and_kills_only_running_containers_have_something() {
    local number limit status name networks pid
    echo "seed $seed, $commands commands"
    RANDOM=$seed
    cnibox networks create --subnet 10.70.0.0/24 mynet
    podman network create --driver cnibox one
    podman network create --driver cnibox --ipv6 two
    podman network create --driver cnibox --opt network=mynet nb
    set +x
    for ((number = 1; number <= commands; number++)); do
        if ((number == commands / 2)); then restart_host; fi
        limit=60 status=0
        case $((RANDOM % 8)) in
        0) kill_one; continue ;;
        1) limit=0.$((RANDOM % 4))$((RANDOM % 10)) ;;
        esac
        draw_command
        # A podman that is killed there cannot inspect its container any more.
        if [[ ${command[2]} == *connect ]]; then limit=60; fi
        echo "$number, for $limit s: ${command[*]}"
        # Beside podman, and at another moment of each command.
        (sleep "0.$((RANDOM % 3))$((RANDOM % 10))"; cnibox gc) >/dev/null 2>>/tmp/errors &
        timeout --signal KILL "$limit" "${command[@]}" >/dev/null 2>/tmp/error || status=$?
        tee -a /tmp/errors </tmp/error
        # A podman that is killed before it notes a namespace forgets it.
        if ((status == 137)); then eventually not pidof netavark; cnibox gc; fi
        wait
        # A container is between two states then, as long as nobody repeats the command.
        if ((status == 137)) && [[ ${command[*]} == *' '@(stop|restart|rm|reload)' '* ]]; then
            echo "$number again"
            "${command[@]}" >/dev/null || true
        fi
    done
    set -x
    # A container that podman takes for running, although its conmon and process were killed, has lost its namespace to gc.
    not grep -E 'netavark:|cnibox:' <<<"$(grep -vE 'open container netns|invalid namespace path' /tmp/errors)"
    # podman still shows a container as running whose conmon and process were killed.
    podman ps --format '{{.Names}} {{.Pid}}' >/tmp/running
    while read -r name pid; do
        [[ -d /proc/$pid ]] || podman rm --force --time 0 "$name" || podman rm --force --time 0 "$name"
    done </tmp/running
    eventually gc_removes_nothing
    podman ps --all
    diff <(networks_of_running) <(attachments | cut -d ' ' -f 1,2)
    diff <(attachments) <(owners_in_nftables)
    diff <(attachments) <(owners_of_addresses)
    [[ $(ip -o link | grep -cE '^[0-9]+: veth') == $(attachments | wc -l) ]]
    podman ps --format '{{.Names}} {{.Networks}}' >/tmp/running
    while read -r name networks; do
        [[ -z $networks ]] || serves "127.0.0.1:80${name#c}"
    done </tmp/running
    podman rm --force --all --time 0 || podman rm --force --all --time 0
    cnibox gc
    nothing_is_left
}
