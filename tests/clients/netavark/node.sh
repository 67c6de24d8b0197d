# Enters a node whose files are those of a Debian (`bash node.sh ROOT EXECUTABLE FUNCTION COMMANDS SEED`), and runs a test of the other files there.
# Its own are the network, mounts and processes, and all that it writes.
set -euo pipefail

readonly root=$1 executable=$2 name=$3 commands=$4 seed=$5 node=/run/node
mount -t tmpfs tmpfs /run
mkdir -p "$node"/{upper,work,root}
mount -t overlay -o "lowerdir=$root,upperdir=$node/upper,workdir=$node/work" overlay "$node/root"
cd "$node/root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
# podman has its locks here.
mount -t tmpfs tmpfs dev/shm
# The OCI runtimes refuse two kinds of control groups side by side.
if mountpoint -q sys/fs/cgroup/unified; then umount -l sys/fs/cgroup/unified; fi
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs var/lib
install -D "$executable" usr/bin/cnibox
mkdir -p usr/libexec/netavark run/netns
ln -s ../../bin/cnibox usr/libexec/netavark/cnibox
cp -r "$OLDPWD/tests/clients/netavark" tmp/tests
rm tmp/tests/node.sh
cp "$OLDPWD"/tests/claims.sh "$OLDPWD"/tests/clients/machine.sh "$OLDPWD"/tests/bench/netavark.sh tmp/tests
ip link set lo up
# As on a real node, nothing is above its root directory: the OCI runtimes would mount files at paths of the machine.
pivot_root . mnt
exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root PODMAN_IGNORE_CGROUPSV1_WARNING=1 \
    commands="$commands" seed="$seed" \
    bash -c 'umount -l /mnt; for file in /tmp/tests/*.sh; do . "$file"; done; prepare; set -x; "$1"' podman "$name"
