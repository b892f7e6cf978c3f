#!/usr/bin/env bash
# Builds the images of the compose file without a registry, from what this
# machine has: Debian's Redis and Prometheus, NATS from this module's own
# requirement, and streamcounter with deploy/Dockerfile on the machine's Go.
#
#   deploy/images.sh [redis] [nats] [prometheus] [builder] [app] [ratelimit]    (default: all)
#
# It makes streamcounter-redis:local, streamcounter-nats:local,
# streamcounter-prometheus:local, streamcounter-builder:local,
# streamcounter:local and streamcounter-ratelimit:local. Where public images can be had, none of this is needed.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '%s\n' "$*"; }

# need PROGRAM PACKAGE: installs a Debian package if the program is missing, and keeps its service from starting.
need() {
	if command -v "$1" >/dev/null; then return; fi
	say "installing $2 for $1"
	local sudo=() policy=/usr/sbin/policy-rc.d
	if [ "$(id -u)" -ne 0 ]; then sudo=(sudo); fi
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
		"${sudo[@]}" chmod 755 "$policy"
	else
		policy=
	fi
	local failed=0
	install_package "$2" >"$work/apt.log" 2>&1 || failed=1
	if [ -n "$policy" ]; then "${sudo[@]}" rm -f "$policy"; fi
	if [ "$failed" -ne 0 ] || ! command -v "$1" >/dev/null; then
		tail -n 20 "$work/apt.log" >&2
		say "cannot install $2, which has $1" >&2
		exit 1
	fi
}

install_package() {
	local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
	"${apt[@]}" install -y --no-install-recommends "$1" && return
	"${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "$1" # the package lists were missing or old
}

# root NAME: an empty root file system with the users and directories of a small one.
root() {
	local r="$work/$1"
	mkdir -p "$r"/{bin,dev,etc,proc,sys,tmp,usr/bin,var}
	chmod 1777 "$r/tmp"
	printf '%s\n' root:x:0:0::/root:/bin/sh redis:x:999:999::/data:/bin/false \
		nonroot:x:65532:65532::/tmp:/bin/false nobody:x:65534:65534::/tmp:/bin/false >"$r/etc/passwd"
	printf '%s\n' root:x:0: redis:x:999: nonroot:x:65532: nogroup:x:65534: >"$r/etc/group"
	printf 'hosts: files dns\n' >"$r/etc/nsswitch.conf"
	printf '%s' "$r"
}

# add ROOT PROGRAM [DIRECTORY]: copies a program from PATH and the shared libraries that it loads.
add() {
	local program dir=${3:-/usr/bin} lib
	program=$(type -P "$2")
	install -D -m 755 "$(readlink -f "$program")" "$1$dir/$(basename "$2")"
	# A static program loads none; then ldd fails and grep finds nothing.
	{ ldd "$program" 2>/dev/null | grep -o '/[^ ]*' || true; } | while read -r lib; do
		install -D -m 755 "$(readlink -f "$lib")" "$1$lib"
	done
}

# shell ROOT: busybox, for health checks (wget) and for a build's sh.
shell() {
	local tool
	add "$1" busybox /bin
	for tool in sh wget cp mv rm mkdir chmod chown cat ls id env test '['; do
		ln -sf /bin/busybox "$1/bin/$tool"
	done
}

# import ROOT IMAGE CHANGE...: makes the image and prints what it made.
import() {
	local r=$1 image=$2 change changes=() old
	shift 2
	old=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null || true)
	for change in "$@"; do changes+=(--change "$change"); done
	tar -C "$r" --numeric-owner -c . | docker import "${changes[@]}" --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin' - "$image" >/dev/null
	forget "$old" "$image"
	made "$image"
}

# forget ID IMAGE: removes the previous image of the name IMAGE, unless it is the same image or a container uses it.
forget() {
	if [ -n "$1" ] && [ "$1" != "$(docker image inspect -f '{{.Id}}' "$2")" ]; then docker image rm "$1" >/dev/null 2>&1 || true; fi
}

made() { say "made $1 ($(docker image inspect -f '{{.Size}}' "$1" | numfmt --to=iec))"; }

image_redis() {
	need redis-server redis-server
	need redis-cli redis-tools
	local r
	r=$(root redis)
	add "$r" redis-server
	add "$r" redis-cli
	install -d -o 999 -g 999 "$r/data"
	import "$r" streamcounter-redis:local 'CMD ["redis-server"]' 'USER 999:999' 'WORKDIR /data' 'VOLUME /data' 'EXPOSE 6379'
}

image_nats() {
	need busybox busybox-static
	local r
	r=$(root nats)
	CGO_ENABLED=0 go build -trimpath -o "$r/usr/bin/nats-server" github.com/nats-io/nats-server/v2
	shell "$r"
	mkdir -m 1777 "$r/var/tmp"
	import "$r" streamcounter-nats:local 'ENTRYPOINT ["nats-server"]' 'USER 65532:65532' 'EXPOSE 4222 8222'
}

image_prometheus() {
	need prometheus prometheus
	need busybox busybox-static
	local r
	r=$(root prometheus)
	add "$r" prometheus /bin
	add "$r" promtool /bin
	shell "$r"
	install -d -o 65534 -g 65534 "$r/prometheus"
	import "$r" streamcounter-prometheus:local 'ENTRYPOINT ["/bin/prometheus"]' \
		'USER 65534:65534' 'WORKDIR /prometheus' 'VOLUME /prometheus' 'EXPOSE 9090'
}

# The builder replaces the public Go image: a shell, Go, and certificates.
image_builder() {
	need busybox busybox-static
	local r goroot
	r=$(root builder)
	goroot=$(go env GOROOT)
	shell "$r"
	mkdir -p "$r/usr/local/go" "$r/etc/ssl/certs"
	tar -C "$goroot" --exclude=./test --exclude=./doc --exclude=./api -c . | tar -x -C "$r/usr/local/go"
	ln -s /usr/local/go/bin/go "$r/usr/bin/go"
	cp /etc/ssl/certs/ca-certificates.crt "$r/etc/ssl/certs/"
	import "$r" streamcounter-builder:local 'CMD ["sh"]' 'WORKDIR /go'
}

# The app is built by deploy/Dockerfile, with the modules in its context, because a container may have no network
# here.
image_app() {
	docker image inspect streamcounter-builder:local >/dev/null 2>&1 || image_builder
	local c="$work/app" old
	old=$(docker image inspect -f '{{.Id}}' streamcounter:local 2>/dev/null || true)
	mkdir "$c"
	git ls-files -co --exclude-standard -z | xargs -0 -I{} sh -c 'test ! -e "$1" || printf "%s\0" "$1"' sh {} |
		tar --null -T - -c | tar -x -C "$c"
	(cd "$c" && go mod vendor)
	if ! docker build -f "$c/deploy/Dockerfile" -t streamcounter:local \
		--build-arg BUILDER=streamcounter-builder:local --build-arg GOFLAGS=-mod=vendor \
		--build-arg COMMIT="$(git rev-parse HEAD 2>/dev/null)" "$c" >"$work/build.log" 2>&1; then
		tail -n 30 "$work/build.log" >&2
		exit 1
	fi
	docker image prune -f --filter label=streamcounter.stage=build >/dev/null # hundreds of MB, not useful as a cache
	forget "$old" streamcounter:local
	made streamcounter:local
}

# An image that replaces envoyproxy/ratelimit, like the target of that name in deploy/Dockerfile, without a builder.
image_ratelimit() {
	local r
	r=$(root ratelimit)
	CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.commit=$(git rev-parse HEAD 2>/dev/null)" \
		-o "$r/bin/ratelimit" ./cmd/streamcounter
	install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$r/etc/ssl/certs/ca-certificates.crt"
	import "$r" streamcounter-ratelimit:local 'ENTRYPOINT ["/bin/ratelimit"]' 'USER 65532:65532' \
		'EXPOSE 8080 8081 6070 19001'
}

images=("$@")
if [ ${#images[@]} -eq 0 ]; then images=(redis nats prometheus builder app ratelimit); fi
for image in "${images[@]}"; do
	case $image in
	redis | nats | prometheus | builder | app | ratelimit) "image_$image" ;;
	*) say "no image $image: it makes redis, nats, prometheus, builder, app, ratelimit" >&2; exit 2 ;;
	esac
done
