SUMMARY = "@SUMMARY@"
HOMEPAGE = "@HOMEPAGE@"
LICENSE = "@LICENCE@"
LIC_FILES_CHKSUM = "file://LICENSE;md5=@LICENCE_MD5@"

SRC_URI = "@HOMEPAGE@/@NAME@-${PV}.tar.xz"
SRC_URI[sha256sum] = "@SHA256@"

inherit cargo systemd

# The archive has all crates in the directory vendor, and names that in .cargo/config.toml, which cargo finds from here.
CARGO_DISABLE_BITBAKE_VENDORING = "1"
B = "${S}"
CARGO_BUILD_FLAGS += "--no-default-features --features @FEATURES@"

# As in meta-virtualization, /opt/cni/bin is a link to the directory of the plugins.
RPROVIDES:${PN} += "cni-plugins"
RREPLACES:${PN} += "cni-plugins"
RCONFLICTS:${PN} += "cni-plugins cni"

SYSTEMD_SERVICE:${PN} = "cnibox-dhcp.socket cnibox-gc.timer cnibox-netns@.service cnibox-reconcile.service"
SYSTEMD_AUTO_ENABLE = "disable"

do_install() {
    install -D -m 0755 ${B}/target/${CARGO_TARGET_SUBDIR}/cnibox ${D}${libexecdir}/cni/cnibox
    for link in ${S}/symlinks/*; do
        ln ${D}${libexecdir}/cni/cnibox ${D}${libexecdir}/cni/$(basename $link)
    done
    install -d ${D}${bindir} ${D}${libexecdir}/netavark ${D}/opt/cni
    ln -rs ${D}${libexecdir}/cni/cnibox ${D}${bindir}/cnibox
    ln -rs ${D}${libexecdir}/cni/cnibox ${D}${libexecdir}/netavark/cnibox
    ln -rs ${D}${libexecdir}/cni ${D}/opt/cni/bin
    install -D -m 0755 ${S}/packaging/netns ${D}${libexecdir}/cnibox/netns
    for unit in cnibox-dhcp.socket cnibox-dhcp.service cnibox-gc.service cnibox-gc.timer cnibox-netns@.service cnibox-reconcile.service; do
        install -D -m 0644 ${S}/packaging/systemd/$unit ${D}${systemd_system_unitdir}/$unit
    done
}

FILES:${PN} += "${libexecdir} /opt/cni ${systemd_system_unitdir}"
