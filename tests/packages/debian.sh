# The Debian package: as lintian sees it, and in a fresh Debian.

readonly root=/run/debian
deb=$packages/cnibox_${version}_amd64.deb

test_lintian_has_nothing_to_say() {
    local said
    said=$(lintian --allow-root --fail-on none --tag-display-limit 0 "$deb")
    [[ -z $said ]]
    dpkg-deb --control "$deb" "$node/control"
    shellcheck "$node/control/"{postinst,prerm,postrm}
}

test_the_package_has_its_plugins_manuals_and_completions() {
    local name at=$node/package
    dpkg-deb --extract "$deb" "$at"
    for name in $(plugins); do
        [[ $(CNI_COMMAND=VERSION "$at/usr/lib/cni/$name" </dev/null) == *supportedVersions* ]]
        [[ -s $at/usr/share/man/man8/cnibox-$name.8.gz ]]
    done
    # One file with all names.
    [[ $(stat -c %h "$at/usr/lib/cni/bridge") == $(($(plugins | wc -l) + 1)) ]]
    [[ $(chroot "$at" /usr/bin/cnibox --version) == *"cnibox.$version"* ]]
    # The pages are those that the executable writes, and cnibox(8) names each.
    "$at/usr/lib/cni/cnibox" man --to "$node/pages"
    diff <(ls "$node/pages") <(cd "$at/usr/share/man/man8" && printf '%s\n' * | sed 's/[.]gz$//')
    for name in cnibox-run cnibox-doctor cnibox-networks-create cnibox-network; do
        diff "$node/pages/$name.8" <(gzip -dc "$at/usr/share/man/man8/$name.8.gz")
    done
    for name in "$node/pages/"cnibox-*; do
        name=$(basename "$name" .8)
        [[ $(sed 's/\\-/-/g' "$node/pages/cnibox.8") == *"$name(8)"* ]]
        # As whatis(1) finds it.
        [[ $(lexgrog "$node/pages/$name.8") == *": \"$name - "* ]]
    done
    gzip -dc "$at"/usr/share/man/man8/*.gz | mandoc -T lint -W error
    bash -n "$at/usr/share/bash-completion/completions/cnibox"
    zsh -n "$at/usr/share/zsh/vendor-completions/_cnibox"
    fish --no-execute "$at/usr/share/fish/vendor_completions.d/cnibox.fish"
    sh -n "$at/usr/libexec/cnibox/netns"
    grep -q '^ExecStart=/usr/lib/cni/dhcp daemon$' "$at/usr/lib/systemd/system/cnibox-dhcp.service"
    grep -q '^ExecStart=/usr/lib/cni/cnibox gc --confirm$' "$at/usr/lib/systemd/system/cnibox-gc.service"
    grep -q '^ExecStart=/usr/lib/cni/cnibox reconcile --watch$' "$at/usr/lib/systemd/system/cnibox-reconcile.service"
    mount --bind "$at/usr/lib/cni" /usr/lib/cni
    mount --bind "$at/usr/libexec" /usr/libexec
    SYSTEMD_UNIT_PATH=$at/usr/lib/systemd/system: systemd-analyze verify --man=no cnibox-dhcp.socket \
        cnibox-gc.timer cnibox-netns@web.service cnibox-reconcile.service
    cmp "$at/usr/lib/cni/bridge" "$executable"
}

# A machine of its own: the base is never written to.
boot() {
    mkdir -p "$root" "$node/"{changes,scratch}
    mount -t overlay -o "lowerdir=$base,upperdir=$node/changes,workdir=$node/scratch" overlay "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs tmpfs "$root/tmp"
    configure_podman "$root"
    cp "$deb" "$root/tmp"
    mkdir -p "$root/srv/web/"{bin,proc,sys,dev,etc,run,tmp,www}
    cp "$base/bin/busybox" "$root/srv/web/bin"
    echo hello >"$root/srv/web/www/index.html"
}

machine() {
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive chroot "$root" "$@"
}

# The machine has no network: apt downloaded the packages when the base was made.
apt() {
    machine apt-get -q -y --no-install-recommends "$@"
}

page() {
    machine timeout 2 busybox wget -qO- "http://$1/"
}

is_installed() {
    [[ $(machine dpkg-query --show --showformat '${Status}' "$1") == 'install ok installed' ]]
}

# All paths but those of the kernel and of podman's storage.
paths() {
    (cd "$root" && find . -xdev -not -path './srv/*' -not -path './var/lib/storage/*' -not -path './tmp/*'; find run) | sort
}

serves_a_container() {
    machine podman run --detach --name web --publish 18080:80 --rootfs /srv/web /bin/busybox httpd -f -p 80 -h /www
    eventually page 127.0.0.1:18080
    [[ $(page 127.0.0.1:18080) == hello ]]
    [[ $(machine podman inspect web) == *'"IPAddress": "10.88.0.'* ]]
}

# Podman reads the hook of the package without a configuration.
serves_a_container_by_the_hook() {
    machine cnibox networks create dbnet
    machine podman run --detach --name hooked --network none --annotation cnibox.networks=dbnet \
        --annotation cnibox.ports=18081:80 --rootfs /srv/web /bin/busybox httpd -f -p 80 -h /www
    eventually page 127.0.0.1:18081
}

# Removes the package, and prints the lines of its scripts. dpkg has a terminal, whose lines end with a carriage return.
removal() {
    apt remove cnibox | tr -d '\r' | grep '^cnibox: '
}

test_podman_publishes_a_port_with_no_other_package_and_removal_leaves_state_only() {
    local path
    boot
    apt install "/tmp/${deb##*/}" podman
    not is_installed containernetworking-plugins
    not is_installed netavark
    machine bash -ec 'not() { ! "$@"; }; for tool in iptables nft ip netavark; do not command -v $tool; done'
    [[ $(machine cnibox --version) == *"cnibox.$version"* ]]
    serves_a_container
    serves_a_container_by_the_hook
    machine podman rm --force --time 0 web hooked
    not page 127.0.0.1:18080
    not page 127.0.0.1:18081
    # The package has the only driver.
    [[ $(ls -A "$root/usr/libexec/netavark") == cnibox ]]
    [[ $(machine /usr/libexec/netavark/cnibox info) == *'"api_version":"1.0.0"'* ]]
    machine dpkg --listfiles cnibox >"$node/files"
    [[ $(removal) == *" to install the Go plugins: apt install containernetworking-plugins" ]]
    while read -r path; do
        [[ -d $root$path || ! -e $root$path ]] || { echo "$path is left" >&2; return 1; }
    done <"$node/files"
    # The names of an attachment, of a package that can be purged, and of networks that podman made.
    not grep -iE 'cnibox|/cni(/|-|$)' <<<"$(paths | grep -vE '^(./)?(var/lib/cni|run/(cni|cnibox)|etc/cni|var/lib/dpkg/info/cnibox[.]|run/lock)' |
        grep -vE '^./var/lib/systemd/deb-systemd-helper-enabled')"
    [[ ! -e $root/usr/lib/cni && ! -e $root/usr/libexec/cnibox && ! -e $root/usr/libexec/netavark ]]
    apt purge cnibox
    not grep -i cnibox <<<"$(paths | grep -vE '^(run/cnibox|./var/lib/cni)')"
}

test_apt_replaces_the_go_package_below_podman_and_back() {
    boot
    apt install podman containernetworking-plugins
    serves_a_container
    apt install "/tmp/${deb##*/}"
    not is_installed containernetworking-plugins
    is_installed podman
    # A container of the Go plugins is served on, and ends with ours.
    [[ $(page 127.0.0.1:18080) == hello ]]
    machine podman rm --force --time 0 web
    not page 127.0.0.1:18080
    serves_a_container
    machine podman rm --force --time 0 web
    apt install containernetworking-plugins
    [[ ! -e $root/usr/lib/cni/cnibox && -e $root/usr/lib/cni/bridge ]]
    serves_a_container
}

test_removal_names_the_directory_that_still_has_plugins() {
    local command
    boot
    apt install "/tmp/${deb##*/}"
    mkdir -p "$root/opt/cni/bin"
    echo go >"$root/opt/cni/bin/bridge"
    machine cnibox install --force --backup /opt/cni/bin
    ln -s /usr/lib/cni/tap "$root/opt/cni/bin/link"
    removal >"$node/said"
    grep -qx 'cnibox: /opt/cni/bin has links to plugins that are removed, such as /opt/cni/bin/link' "$node/said"
    # The command of the line works, and restores the file.
    command=$(sed -n 's|^cnibox: /opt/cni/bin still has .*: \(/opt/cni/bin/cnibox\)|\1|p' "$node/said")
    [[ $command == "/opt/cni/bin/cnibox uninstall /opt/cni/bin" ]]
    # shellcheck disable=SC2086
    machine $command
    [[ $(cat "$root/opt/cni/bin/bridge") == go && ! -e $root/opt/cni/bin/cnibox ]]
}

# The lines with a prompt are executed, and print the other lines.
test_the_readme_is_true() {
    local session
    boot
    apt install "/tmp/${deb##*/}"
    session=$(gzip -dc "$root/usr/share/doc/cnibox/README.md.gz" | sed -n '/^## A network and a container/,/^`kill/s/^    //p')
    [[ $session == *"# cnibox run --name web"* ]]
    ln -s /bin/busybox "$root/usr/local/bin/wget"
    machine bash -ec "PATH=/usr/local/bin:\$PATH
        $(sed -n 's/^# //p' <<<"$session")
        kill \$!; wait \$! || true" >"$node/said"
    diff <(grep -v '^# ' <<<"$session") "$node/said"
    machine bash -ec 'for command in doctor lint "attachments --check" "gc --dry-run"; do cnibox $command; done'
    machine bash -ec 'cnibox reconcile --dry-run; cnibox networks rm mynet'
}
