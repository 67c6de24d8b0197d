# podman of an ordinary user: the driver is root of a user namespace, and /var/lib is not writable. A part of podman.sh.

# as_user COMMAND...
as_user() {
    setpriv --reuid 1000 --regid 1000 --init-groups --inh-caps=-all \
        env -i "PATH=$PATH" HOME=/home/user XDG_RUNTIME_DIR=/run/user/1000 PODMAN_IGNORE_CGROUPSV1_WARNING=1 "$@"
}

# inside COMMAND...: where the networks of the user's containers are.
inside() {
    as_user podman unshare --rootless-netns "$@"
}

prepare_user() {
    useradd --create-home --uid 1000 user
    install -d -o user -g user -m 700 /run/user/1000
    install -d -o user -g user /home/user/.config /home/user/.config/containers
    rm /etc/containers/storage.conf
    printf '[storage]\ndriver = "vfs"\n' >/home/user/.config/containers/storage.conf
    # pasta opens it; on the tests' machine only root may.
    mknod -m 666 /run/tun c 10 200
    mount --bind /run/tun /dev/net/tun
    chmod 755 /
    mount --make-rshared /
    cd /home/user
    tar --directory /tmp/image --create . | as_user podman import --quiet - "$image" >/dev/null
}

test_without_root_containers_have_ports_and_addresses() {
    prepare_user
    as_user podman network create --driver cnibox --ipv6 web
    as_user podman run --detach --name c1 --network web:ip=10.89.0.77 -p 8080:80 "$image" /bin/httpd -f -p 80 -h /www
    as_user podman run --detach --name c2 --network web "$image" /bin/sleep 1000
    eventually serves 127.0.0.1:8080
    [[ $(as_user podman exec c2 wget -qO- http://10.89.0.77/) == hello ]]
    [[ $(as_user podman exec c2 ip -6 route) == *'default via fd'* ]]
    [[ $(as_user podman port c1) == *'80/tcp -> 0.0.0.0:8080'* ]]
    [[ $(inside cnibox attachments) == *'10.89.0.77/24'*'alive'* ]]
    [[ $(inside find /run/cnibox/lib/attachments -type f | wc -l) == 2 && ! -e /var/lib/cni ]]
    grep 8080 <<<"$(inside nft list ruleset)"
    as_user podman restart --time 0 c1
    eventually serves 127.0.0.1:8080
    as_user podman rm --force --time 0 c1
    [[ $(inside cnibox attachments) != *10.89.0.77* ]]
    [[ $(inside ip -brief link show type veth | wc -l) == 1 ]]
    not grep 8080 <<<"$(inside nft list ruleset)"
}

test_without_root_gc_removes_what_has_ended() {
    local netns
    prepare_user
    as_user podman network create --driver cnibox web
    as_user podman run --detach --name c1 --network web -p 8080:80 "$image" /bin/httpd -f -p 80 -h /www
    as_user podman run --detach --name c2 --network web "$image" /bin/sleep 1000
    [[ -z $(inside cnibox gc) ]]
    netns=$(as_user podman inspect --format '{{.NetworkSettings.SandboxKey}}' c1)
    kill -KILL "$(as_user podman inspect --format '{{.State.ConmonPid}}' c1)" "$(as_user podman inspect --format '{{.State.Pid}}' c1)"
    # shellcheck disable=SC2016
    as_user podman unshare sh -c 'umount "$1"; rm "$1"' sh "$netns"
    [[ $(inside cnibox gc) == *'removed eth0 of container'*'its network namespace has ended'* ]]
    [[ $(inside cnibox attachments | grep -c alive) == 1 ]]
    not grep 8080 <<<"$(inside nft list ruleset)"
    [[ $(inside ip -brief link show type veth | wc -l) == 1 ]]
}
