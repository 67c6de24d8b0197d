# Runs one test of a file beside this one (`sh lib.sh FILE FUNCTION`), and is what tests are written with.
#
# A test is a function of tests/vm/PLUGIN.sh; its name is a claim. `test_two_containers_reach_each_other` runs in
# network, mount and process namespaces of its own, which play the host, with /run, /var and /tmp of its own: it needs
# to tidy up nothing. `machine_nic_comes_back` runs on the machine itself, alone and after all others, where the
# machine's two network cards are (52:54:00:00:00:10 and :11, with a cable between them); it leaves things as they were.
# `cut_…` is for power-loss.sh alone: see there.
#
# The kernel has what is listed in tests/vm/run. Modules that are there on demand are for `machine_` tests, since all
# tests would feel them.
#
# It runs under `set -euo pipefail`: the first command that fails, also within a pipe, fails the test, and what it did is
# shown. Beware of what switches that off: commands before `&&` and `||`, in an `if`, and all that those call. `! command`
# never fails: write `not command`.
#
# There is no ip but busybox's, no nft, no tc: look at /sys and /proc, and at traffic. Bad input needs no machine, and
# is tested in tests/it.

cni_bin=/opt/cni/bin
limit_s=30

# --- Containers and other hosts -------------------------------------------------------------------------------------

# container NAME...: network namespaces as runtimes make them, with nothing up in them.
container() {
    local name
    mkdir -p /run/netns
    for name in "$@"; do
        : >"/run/netns/$name"
        unshare --net="/run/netns/$name" true
    done
}

# at NAME COMMAND...: runs it in that namespace (`at host` is here), with the /sys and /proc/net that belong to it.
at() {
    local name=$1
    shift
    if [ "$name" = host ]; then
        "$@"
    else
        nsenter --net="/run/netns/$name" unshare -m sh -c 'mount -t sysfs sysfs /sys; exec "$@"' at "$@"
    fi
}

# destroy NAME: the namespace ends, with all that is in it and that no process holds.
destroy() {
    umount "/run/netns/$1"
    rm "/run/netns/$1"
}

# give LINK NAME: moves a link of the host there.
give() {
    local holder
    rm -f /tmp/holding
    nsenter --net="/run/netns/$2" sh -c ': >/tmp/holding; exec sleep 1000' &
    holder=$!
    eventually test -e /tmp/holding
    ip link set "$1" netns "$holder"
    kill "$holder"
    wait "$holder" || true
}

# outside NAME HOST_ADDRESS/LEN ITS_ADDRESS/LEN [HOST6/LEN ITS6/LEN]: another host at the other end of a cable. The
# end here is called NAME, and there eth0. It knows no route but to the cable.
outside() {
    local name=$1
    shift
    container "$name"
    ip link add name "$name" type veth
    ip link set veth0 name peer
    give peer "$name"
    at "$name" ip link set peer name eth0
    at "$name" ip link set lo up
    while [ $# -ge 2 ]; do
        add_address host "$name" "$1"
        add_address "$name" eth0 "$2"
        shift 2
    done
    ip link set "$name" up
    at "$name" ip link set eth0 up
}

# add_address NAME LINK ADDRESS/LEN: which can be used at once.
add_address() {
    at "$1" sh -c "echo 0 >/proc/sys/net/ipv6/conf/$2/accept_dad"
    at "$1" ip addr add "$3" dev "$2"
}

# --- Calls ----------------------------------------------------------------------------------------------------------

# add PLUGIN CONTAINER CONFIG, and so on: calls that must succeed, for interface eth0, or $ifname where that is set.
# As a runtime does it, the result of the last ADD for an interface is handed to the calls after it as prevResult, so
# `add bridge c1 …; add portmap c1 …; check portmap c1 …; del portmap c1 …; del bridge c1 …` is a chain. The
# output of the plugin is in $said. CNI_ARGS is taken from $cni_args.
add() {
    call ADD "$@" || fail "ADD of $1 for $2 said: $said"
    printf '%s' "$said" >"$(result_of "$2")"
}

check() {
    call CHECK "$@" || fail "CHECK of $1 for $2 said: $said"
}

del() {
    call DEL "$@" || fail "DEL of $1 for $2 said: $said"
}

status() {
    call STATUS "$1" '' "$2" || fail "STATUS of $1 said: $said"
}

# gc PLUGIN CONFIG [CONTAINER...]: the containers' eth0 are what is valid.
gc() {
    local plugin=$1 config=$2 name valid=
    shift 2
    for name in "$@"; do
        valid="$valid${valid:+, }{\"containerID\": \"$name\", \"ifname\": \"eth0\"}"
    done
    call GC "$plugin" '' "$(with "$config" "\"cni.dev/valid-attachments\": [$valid]")" || fail "GC of $plugin said: $said"
}

# expect_fail CODE VERB PLUGIN CONTAINER CONFIG: the call fails with that error code.
expect_fail() {
    local code=$1
    shift
    if call "$@"; then fail "$1 of $2 succeeded: $said"; fi
    # All of a long text is read: with -q, printf would fail.
    printf '%s\n' "$said" | grep "\"code\": $code,*\$" >/dev/null || fail "$1 of $2 did not fail with code $code: $said"
}

# call VERB PLUGIN CONTAINER CONFIG: its exit status.
call() {
    local config=$4 status=0 previous
    previous=$(result_of "$3")
    if [ -s "$previous" ]; then config=$(with "$config" "\"prevResult\": $(cat "$previous")"); fi
    said=$(printf '%s' "$config" | plugin "$1" "$2" "$3") || status=$?
    return $status
}

# plugin VERB PLUGIN CONTAINER: the call itself, with the configuration on stdin; CONTAINER may be empty. The namespace
# is /run/netns/CONTAINER, or $netns where that is set.
plugin() {
    env -i CNI_COMMAND="$1" CNI_PATH="$cni_bin" CNI_ARGS="${cni_args-}" \
        ${3:+CNI_CONTAINERID="$3" CNI_NETNS="${netns-/run/netns/$3}" CNI_IFNAME="${ifname-eth0}"} "$cni_bin/$2"
}

# Where the last result for an interface of a container is kept.
result_of() {
    echo "/tmp/result-$1-${ifname-eth0}"
}

# with OBJECT MEMBERS: a JSON object with more in it.
with() {
    printf '%s, %s}' "${1%\}*}" "$2"
}

# said_contains TEXT: of what the last call printed.
said_contains() {
    case $said in
    *"$1"*) ;;
    *) fail "no $1 in: $said" ;;
    esac
}

# --- Looking --------------------------------------------------------------------------------------------------------

fail() {
    set +x
    echo "FAILED: $*"
    exit 1
}

not() {
    if ("$@" | sed 's/^FAILED: //'); then fail "it should not have succeeded: $*"; fi
}

# same EXPECTED FOUND [WHAT]
same() {
    [ "$1" = "$2" ] || fail "${3-}${3:+: }expected \"$1\", found \"$2\""
}

# eventually COMMAND...: repeated until it succeeds, for changes that the kernel makes after the call has returned.
eventually() {
    local tries=$((limit_s * 20))
    until ("$@" | sed 's/^FAILED: //'); do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || fail "not within $limit_s s: $*"
        usleep 50000
    done
}

# address_of NAME LINK [4|6]: what the kernel has there, one global address per line, without the prefix length.
address_of() {
    at "$1" ip "-${3-4}" addr show dev "$2" scope global | awk '$1 ~ /^inet/ { sub("/.*", "", $2); print $2 }'
}

# reaches NAME ADDRESS: an ICMP echo there and back. The first may be lost while neighbours are looked for.
reaches() {
    at "$1" ping -q -c 1 -W 1 "$2" || at "$1" ping -q -c 5 -W 2 "$2" || fail "$1 does not reach $2"
}

# never_reaches NAME ADDRESS: the test has to show that it would otherwise.
never_reaches() {
    if at "$1" ping -q -c 2 -W 1 "$2"; then fail "$1 reaches $2"; fi
}

# serve NAME PORT: a web server there, over IPv4 and IPv6; its one page says NAME. peers NAME prints who came.
serve() {
    mkdir -p "/tmp/www-$1"
    echo "$1" >"/tmp/www-$1/index.html"
    at "$1" httpd -f -v -p "$2" -h "/tmp/www-$1" 2>>"/tmp/peers-$1" &
    eventually at "$1" grep -qi "$(printf ':%04X 0*:0000 0A' "$2")" /proc/net/tcp6
}

peers() {
    sed -nE 's/^\[?(::ffff:)?([0-9a-f.:]+)\]?:[0-9]+:.*/\2/p' "/tmp/peers-$1"
}

# fetches NAME URL EXPECTED: over TCP; says what the page should.
fetches() {
    same "$3" "$(at "$1" timeout 15 wget -q -O - "$2")" "$1 fetches $2"
}

never_fetches() {
    if at "$1" timeout 2 wget -q -O - "$2"; then fail "$1 fetches $2"; fi
}

# Prints the state of the host: links, addresses, routes, state of the plugins. Not the things that
# the reference leaves, too, nor those that the kernel makes by itself.
state() {
    ls /sys/class/net
    { ip -o addr && ip route && ip -6 route; } | sed -E 's/^[0-9]+: //; s/ tentative//; /fe80::|anycast|multicast/d'
    find /var/lib/cni /run/cni -type f | sed -E '/\/lock$|\/last_reserved_ip|\/\.cnibox\//d' | sort
}

# remember; …; nothing_changed: the host is as it was.
remember() {
    state >/tmp/state-before
}

nothing_changed() {
    state >/tmp/state-after
    diff /tmp/state-before /tmp/state-after || fail "the host is not as it was"
}

# --- The run --------------------------------------------------------------------------------------------------------

set -euo pipefail
for directory in /run /var /tmp; do
    mount -t tmpfs tmpfs "$directory"
done
case $2 in
test_*) mount -t sysfs sysfs /sys ;;
cut_*) mount -t ext4 -o commit=1 /dev/vda /var ;;
esac
mkdir -p /var/lib/cni /run/cni
trap 'set +x; kill $(jobs -p) 2>/dev/null || true' EXIT
ip link set lo up
. "/vm/$1.sh"
set -x
"$2"
