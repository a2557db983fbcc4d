#!/bin/bash
# Boots a throw-away systemd over an overlay of /, in namespaces of its own: all of it goes with the
# process. Arguments: an empty folder, a script that prepares the new root (its $R), before systemd starts.
# What systemd would do to the kernel itself (sysctls, modules, devices) is masked.
set -e
exec unshare --fork --kill-child --pid --mount --uts --ipc --cgroup --propagation private bash -ec '
B=$1 PREPARE=$2 R=$1/root
mount -t tmpfs -o size=2g tmpfs "$B"; mkdir -p "$B"/{up,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$B/up,workdir=$B/work" "$R"
mount -t proc proc "$R/proc"; mount -t sysfs -o ro sysfs "$R/sys"; mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
mount -t tmpfs tmpfs "$R/dev"
for d in null zero full random urandom tty; do touch "$R/dev/$d"; mount --bind "/dev/$d" "$R/dev/$d"; done
mkdir "$R"/dev/{shm,pts}; mount -t tmpfs tmpfs "$R/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$R/dev/pts"
ln -s pts/ptmx "$R/dev/ptmx"; ln -s /proc/self/fd "$R/dev/fd"
export R; bash -e "$PREPARE"
mount -t tmpfs tmpfs "$R/run"; mount -t tmpfs tmpfs "$R/tmp"
cd "$R"; mkdir -p etc/systemd/system
for u in systemd-{firstboot,machine-id-commit,sysctl,modules-load,binfmt,remount-fs,tmpfiles-setup-dev,udevd,timesyncd}.service \
  systemd-udev{d-control,d-kernel}.socket {dev-hugepages,dev-mqueue,sys-kernel-debug,sys-kernel-tracing,sys-fs-fuse-connections,tmp}.mount \
  proc-sys-fs-binfmt_misc.automount; do ln -sf /dev/null "etc/systemd/system/$u"; done
printf "[Unit]\nRequires=dbus.socket systemd-journald.service\nAfter=dbus.socket systemd-journald.service\nAllowIsolate=yes\n" > etc/systemd/system/box.target
tr -d - < /proc/sys/kernel/random/uuid > etc/machine-id
mount --make-rshared "$R"
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$R" /lib/systemd/systemd --system --unit=box.target --show-status=0
' _ "$1" "$2"
