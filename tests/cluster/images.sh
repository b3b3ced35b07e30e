#!/usr/bin/env bash
# images.sh [operator] [runtime]: build Wisp's images without a registry, check each from inside, and import them into the
# test node if one is up. A rerun after a change of our code takes seconds: the layers below are cached.
#   SUITE    Debian suite of the base, made by debootstrap and kept in ~/.cache/wisp (default trixie)
#   IMPORT   command that takes an archive to another cluster instead: IMPORT="kind load image-archive --name dev"
#   FLAVOUR  of the runtime: cpu or cuda (default cpu)         TAG  of both images (default dev)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd); root=$(cd "$here/../.." && pwd)
. "$here/node/node.sh"
SUITE=${SUITE:-trixie} FLAVOUR=${FLAVOUR:-cpu} TAG=${TAG:-dev}
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/wisp
BASE=localhost/wisp-base:$SUITE
[ $# -gt 0 ] || set -- operator runtime
IMPORT=${IMPORT:-}
[ -n "$IMPORT" ] || [ ! -S $RUN/containerd.sock ] || IMPORT="$NODE_BIN/ctr -a $RUN/containerd.sock -n k8s.io images import"

install_packages() {
  local missing=()
  for name in buildah debootstrap; do command -v $name >/dev/null || missing+=($name); done
  [ ${#missing[@]} = 0 ] || { apt-get update -qq; apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }
}

make_base() {
  local rootfs=$CACHE/base/$SUITE
  ! buildah inspect --type image "$BASE" >/dev/null 2>&1 || return 0
  mkdir -p "$CACHE/base"
  if [ ! -d "$rootfs" ]; then
    rm -rf "$rootfs.partial"
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$SUITE" "$rootfs.partial" >"$rootfs.log" ||
      fail "debootstrap failed, see $rootfs.log"
    mv "$rootfs.partial" "$rootfs"
  fi
  printf 'FROM scratch\nADD . /\n' | buildah bud --isolation chroot --quiet --tag "$BASE" --file - "$rootfs" >/dev/null
}

# The host's certificates are lent to the build, since a mirror may need them; the check below proves that they stay out.
build() {
  buildah bud --quiet --layers --isolation chroot --network host --volume /etc/ssl/certs:/etc/ssl/certs:ro \
    --build-arg BASE="$BASE" --build-arg FLAVOUR="$FLAVOUR" --target "$1" --tag "$2" "$root" >/dev/null
}

# check TARGET MOUNT: run image_check.py inside, as the image's user, on a read-only root.
check() {
  cmp -s "$CACHE/base/$SUITE/etc/ssl/certs/ca-certificates.crt" "$2/etc/ssl/certs/ca-certificates.crt" ||
    fail "the certificates of $1 are not those of $SUITE"
  unshare --mount sh -ec 'mount --bind "$2" "$2"; mount -o remount,bind,ro "$2"; mount -t tmpfs none "$2/tmp"; mount --rbind /dev "$2/dev"
    exec env -i PATH=/opt/wisp/bin:/usr/sbin:/usr/bin HOME=/tmp PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 WISP_KERNELS=/opt/wisp/kernels \
      chroot --userspec=65532:65532 "$2" python3 - "$1"' _ "$1" "$2" <"$here/image_check.py"
}

# import_image IMAGE: layers stay uncompressed, which containerd unpacks fastest; those that it has are not unpacked again.
import_image() {
  local archive; archive=$(mktemp -u "$CACHE/import.XXXXXX")
  buildah push --quiet "$1" "docker-archive:$archive:$1"
  $IMPORT "$archive" >/dev/null 2>"$archive.log" || fail "import of $1 failed: $(cat "$archive.log")"
  rm "$archive" "$archive.log"
}

make_image() {
  local target=$1 image=wisp.test/wisp-$1:$TAG began=$SECONDS container mount found old new
  [ "$target/$FLAVOUR" != runtime/cuda ] || image=$image-cuda
  old=$(buildah inspect --type image --format '{{.FromImageID}}' "$image" 2>/dev/null || true)
  build "$target" "$image"
  new=$(buildah inspect --type image --format '{{.FromImageID}}' "$image")
  container=$(buildah from --pull-never "$image"); mount=$(buildah mount "$container")
  found="$(du -sm "$mount" | cut -f1) MB unpacked"
  [ "$old" = "$new" ] && [ -z "${CHECK:-}" ] || found="$found, $(check "$target" "$mount")" || { buildah rm "$container" >/dev/null; exit 1; }
  buildah rm "$container" >/dev/null
  [ -z "$IMPORT" ] || { import_image "$image"; found="$found, imported"; }
  echo "$image: $found, $((SECONDS - began)) s"
}

[ "$(id -u)" = 0 ] || fail "building without a registry needs root (chroot, mounts)"
install_packages
make_base
for target in "$@"; do make_image "$target"; done
