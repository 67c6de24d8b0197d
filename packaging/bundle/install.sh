#!/bin/sh
# Verifies this directory, and installs its plugins. Needs a shell and sha256sum, as busybox has them.
#
#     install.sh [OPTION...] [DIRECTORY]
#
# DIRECTORY is /opt/cni/bin if not given. The options are those of `cnibox install`: --force --backup takes the place of
# other plugins and keeps them, and --netavark /usr/local/libexec/netavark adds the driver for podman without CNI.
set -eu
cd "$(dirname "$0")"

sha256sum -c SHA256SUMS >/dev/null || {
    echo "install.sh: cannot install: a file of this directory is not as it was made" >&2
    exit 1
}
./cnibox install "$@"
echo "the plugins are installed, and cnibox is beside them"
