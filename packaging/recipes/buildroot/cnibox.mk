################################################################################
#
# cnibox
#
################################################################################

CNIBOX_VERSION = @VERSION@
CNIBOX_SITE = @HOMEPAGE@
CNIBOX_SOURCE = cnibox-$(CNIBOX_VERSION).tar.xz
CNIBOX_LICENSE = @LICENCE@
CNIBOX_LICENSE_FILES = LICENSE
CNIBOX_DEPENDENCIES = host-rustc

# The archive has all crates in the directory vendor. The infrastructure for cargo would download them again.
define CNIBOX_BUILD_CMDS
	cd $(@D) && $(TARGET_MAKE_ENV) $(TARGET_CONFIGURE_OPTS) $(PKG_CARGO_ENV) \
		cargo build --release --frozen --target $(RUSTC_TARGET_NAME) --no-default-features \
		--features @FEATURES@
endef

# Relative links in one directory: every file system of an image has them.
define CNIBOX_INSTALL_TARGET_CMDS
	$(INSTALL) -D -m 0755 $(@D)/target/$(RUSTC_TARGET_NAME)/release/cnibox $(TARGET_DIR)/opt/cni/bin/cnibox
	for link in $(@D)/symlinks/*; do \
		ln -sf cnibox $(TARGET_DIR)/opt/cni/bin/$${link##*/} || exit 1; \
	done
	mkdir -p $(TARGET_DIR)/usr/bin $(TARGET_DIR)/usr/libexec/netavark
	ln -sf ../../opt/cni/bin/cnibox $(TARGET_DIR)/usr/bin/cnibox
	ln -sf ../../../opt/cni/bin/cnibox $(TARGET_DIR)/usr/libexec/netavark/cnibox
	$(INSTALL) -D -m 0755 $(@D)/packaging/netns $(TARGET_DIR)/usr/libexec/cnibox/netns
	$(INSTALL) -D -m 0755 $(@D)/packaging/gc-loop $(TARGET_DIR)/usr/libexec/cnibox/gc-loop
endef

# rcS starts cnibox-gc and cnibox-reconcile only under other names: `ln -s cnibox-gc S70cnibox-gc`.
define CNIBOX_INSTALL_INIT_SYSV
	$(INSTALL) -D -m 0755 $(@D)/packaging/busybox/S50cnibox-dhcp $(TARGET_DIR)/etc/init.d/S50cnibox-dhcp
	$(INSTALL) -D -m 0755 $(@D)/packaging/busybox/S60cnibox-netns $(TARGET_DIR)/etc/init.d/S60cnibox-netns
	$(INSTALL) -D -m 0755 $(@D)/packaging/busybox/S70cnibox-gc $(TARGET_DIR)/etc/init.d/cnibox-gc
	$(INSTALL) -D -m 0755 $(@D)/packaging/busybox/S80cnibox-reconcile $(TARGET_DIR)/etc/init.d/cnibox-reconcile
endef

define CNIBOX_INSTALL_INIT_OPENRC
	$(INSTALL) -D -m 0755 $(@D)/packaging/openrc/cnibox-dhcp $(TARGET_DIR)/etc/init.d/cnibox-dhcp
	$(INSTALL) -D -m 0755 $(@D)/packaging/openrc/cnibox-gc $(TARGET_DIR)/etc/init.d/cnibox-gc
	$(INSTALL) -D -m 0755 $(@D)/packaging/openrc/cnibox-netns $(TARGET_DIR)/etc/init.d/cnibox-netns
	$(INSTALL) -D -m 0755 $(@D)/packaging/openrc/cnibox-reconcile $(TARGET_DIR)/etc/init.d/cnibox-reconcile
endef

define CNIBOX_INSTALL_INIT_SYSTEMD
	for unit in cnibox-dhcp.socket cnibox-dhcp.service cnibox-gc.service cnibox-gc.timer cnibox-netns@.service cnibox-reconcile.service; do \
		$(INSTALL) -D -m 0644 $(@D)/packaging/systemd/$$unit \
			$(TARGET_DIR)/usr/lib/systemd/system/$$unit || exit 1; \
	done
endef

$(eval $(generic-package))
