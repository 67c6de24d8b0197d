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

not() {
    if "$@"; then return 1; fi
}

eventually() {
    local try
    for try in {1..100}; do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "not within 10 s: $*" >&2
    return 1
}

# The page of a container's web server, by an address and port of it or of the host.
page() {
    timeout 2 busybox wget -qO- "http://$1/"
}

serves() {
    local address
    for address in "$@"; do [[ $(page "$address") == hello ]]; done
}

# Of containers there is nothing left: no interface but the host's own and the bridges, no element in a set or map, no
# chain of the Go plugins, no reservation.
nothing_is_left() {
    not grep -E '^[0-9]+: (veth|ifb|bwp)' <<<"$(ip -o link)"
    not grep -E 'elements =|comment "(id|name|dnat)|CNI-DN-' <<<"$(nft list ruleset)"
    not grep -E '/([0-9.]+|[0-9a-f:]+)$' <<<"$(find /var/lib/cni/networks -type f)"
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
