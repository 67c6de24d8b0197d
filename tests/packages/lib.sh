# Runs one test of a file beside this one (`bash lib.sh FILE FUNCTION SCRATCH BASE EXECUTABLE`), and is what tests are
# written with.
#
# A test is a function of tests/packages/FILE.sh; its name is a claim. It runs in network, mount and process namespaces of
# its own, with /run, /var/lib and /opt of its own: it needs to tidy up nothing. The packages are in $packages, and once
# more, made in another directory, in $again.
#
# It runs under `set -euo pipefail` and is traced: the first command that fails fails the test, and what it did is shown.
# Beware of what switches that off: commands before `&&` and `||`, in an `if`, and all that those call. `! command` never
# fails: write `not command`.
set -euo pipefail

readonly file=$1 test=$2 packages=$3/one again=$3/two base=$4 executable=$5
readonly node=/run/node
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
readonly version image=localhost/cnibox:$version

# shellcheck source=tests/claims.sh
source tests/claims.sh
readonly patience_s=30

# Debian's python has Debian's YAML.
look() {
    /usr/bin/python3 -B tests/packages/look.py "$@"
}

# The names of the plugins, one per line.
plugins() {
    ls symlinks
}

# podman's settings below a root directory. There may be no right to raise limits, nor control groups of our own.
configure_podman() {
    mkdir -p "$1/etc/containers"
    cat >"$1/etc/containers/containers.conf" <<-TOML
	[containers]
	cgroups = "disabled"
	default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
	[engine]
	cgroup_manager = "cgroupfs"
	events_logger = "file"
	runtime = "crun"
	TOML
    printf '[storage]\ndriver = "vfs"\nrunroot = "/run/storage"\ngraphroot = "/var/lib/storage"\n' \
        >"$1/etc/containers/storage.conf"
}

main() {
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /var/lib -o size=2g
    mount -t tmpfs tmpfs /opt
    mkdir -p "$node"/{upper,work} /run/netns
    mount -t overlay -o "lowerdir=/etc,upperdir=$node/upper,workdir=$node/work" overlay /etc
    if mountpoint -q /sys/fs/cgroup/unified; then umount -l /sys/fs/cgroup/unified; fi
    ip link set lo up
    # shellcheck source=/dev/null
    source "tests/packages/$file.sh"
    set -x
    "$test"
}

main
