#!/usr/bin/env bash
# Starts the compose file for real, runs the main job against it, and takes it
# down again with its volumes:
#
#   deploy/compose_test.sh          builds the local images that are missing
#   deploy/compose_test.sh --build  builds streamcounter's image first
#
# redis-cli appends events of one key to Redis. Then a check is denied over HTTP, the decision is stored in NATS, and
# Prometheus scrapes all services. Image variables (REDIS_IMAGE and so on) choose other images.
set -euo pipefail
cd "$(dirname "$0")"

export REDIS_IMAGE=${REDIS_IMAGE:-streamcounter-redis:local} NATS_IMAGE=${NATS_IMAGE:-streamcounter-nats:local}
export PROMETHEUS_IMAGE=${PROMETHEUS_IMAGE:-streamcounter-prometheus:local} STREAMCOUNTER_IMAGE=${STREAMCOUNTER_IMAGE:-streamcounter:local}
# Docker picks the ports.
export REDIS_PORT=0 NATS_PORT=0 NATS_MONITOR_PORT=0 HTTP_PORT=0 PROMETHEUS_PORT=0

if docker compose version >/dev/null 2>&1; then compose=(docker compose); else compose=(docker-compose); fi
compose+=(-p "streamcounter-test-$$" -f docker-compose.yml)

step() { printf -- '--- %s\n' "$*"; }
fail() {
	printf 'FAILED: %s\n' "$*" >&2
	exit 1
}

finish() {
	local code=$?
	if [ "$code" -ne 0 ]; then
		"${compose[@]}" ps >&2 || true
		"${compose[@]}" logs --no-color --tail=30 >&2 || true
	fi
	"${compose[@]}" down -v -t 10 >/dev/null 2>&1 || true
	exit "$code"
}
trap finish EXIT

# within SECONDS WHAT COMMAND...: repeats the command until it succeeds.
within() {
	local end=$((SECONDS + $1)) what=$2
	shift 2
	until "$@"; do
		if [ "$SECONDS" -ge "$end" ]; then fail "$what"; fi
		sleep 0.2
	done
}

for image in redis:"$REDIS_IMAGE" nats:"$NATS_IMAGE" prometheus:"$PROMETHEUS_IMAGE" app:"$STREAMCOUNTER_IMAGE"; do
	name=${image%%:*} tag=${image#*:}
	case $tag in *:local) ;; *) continue ;; esac
	if ! docker image inspect "$tag" >/dev/null 2>&1 || { [ "$name" = app ] && [ "${1:-}" = --build ]; }; then
		step "building $tag"
		./images.sh "$name"
	fi
done

step "the alert rules"
docker run --rm -v "$PWD:/deploy:ro" --entrypoint /bin/promtool "$PROMETHEUS_IMAGE" test rules /deploy/alerts_test.yml

step "starting"
log=$("${compose[@]}" up -d 2>&1) || fail "up: $log"
mapfile -t containers < <("${compose[@]}" ps -q)
[ ${#containers[@]} -eq 6 ] || fail "it started ${#containers[@]} containers, want 6"

healthy() { [ "$(docker inspect -f '{{.State.Health.Status}}' "${containers[@]}" | sort -u)" = healthy ]; }
within 60 "not all containers are healthy" healthy

step "six containers are healthy; nobody may be root"
for c in "${containers[@]}"; do
	name=$(docker inspect -f '{{.Name}}' "$c")
	uids=$(docker top "$c" -eo pid,uid | awk 'NR > 1 {print $2}' | sort -u | xargs)
	printf '%s runs as %s\n' "${name#/}" "$uids"
	case " $uids " in *" 0 "*) fail "$name runs as root" ;; esac
	[ "$(docker inspect -f '{{.HostConfig.ReadonlyRootfs}}' "$c")" = true ] || fail "$name can write its root file system"
	docker inspect -f '{{range $p, $b := .HostConfig.PortBindings}}{{range $b}}{{.HostIp}} {{end}}{{end}}' "$c" | tr ' ' '\n' |
		grep -v -e '^127\.0\.0\.1$' -e '^$' && fail "$name is published beyond loopback"
done

http=http://$("${compose[@]}" port serve 8080)
prometheus=http://$("${compose[@]}" port prometheus 9090)
nats=http://$("${compose[@]}" port nats 8222)
redis() { "${compose[@]}" exec -T redis redis-cli -e "$@"; }

key=user:42
# The partition is CRC-32 mod 16. gzip writes the CRC-32 of its input, low byte first.
crc=$(printf %s "$key" | gzip -c | tail -c 8 | od -An -N4 -tu1 | awk '{print $1 + 256*$2 + 65536*$3 + 16777216*$4}')
events="sc:{$((crc % 16))}:events"

step "the first check of $key is allowed"
code=$(curl -s -o /dev/null -w '%{http_code}' "$http/v1/check?key=$key&cost=1")
[ "$code" = 200 ] || fail "the first check answers $code, want 200"

step "100 events for $key into $events by redis-cli"
for _ in $(seq 100); do printf 'XADD %s * key %s count 1\n' "$events" "$key"; done | redis >/dev/null

counted() { curl -s "$http/v1/keys/$key" | tr -d ' \n' | grep -q '"used":101[,}]'; }
step "a worker counts them within 5 s"
within 5 "GET /v1/keys/$key does not show 101 used" counted

headers=$(mktemp)
denied() { [ "$(curl -s -D "$headers" -o /dev/null -w '%{http_code}' "$http/v1/check?key=$key")" = 429 ]; }
step "the next check is denied"
denied || fail "GET /v1/check?key=$key is not 429 at 101 of 100"
curl -s -D "$headers" "$http/v1/check?key=$key"
printf '\n'
grep -i -e '^HTTP' -e '^RateLimit' -e '^Retry-After' "$headers"
grep -qi '^Retry-After: [1-9]' "$headers" || fail "the denial has no Retry-After"
rm -f "$headers"

decided() { curl -s "$nats/jsz?streams=1" | tr -d ' \n' | grep -q '"name":"SC_THROTTLE"[^]]*"state":{"messages":[1-9]'; }
step "the decision stands in NATS"
within 10 "the stream SC_THROTTLE holds no message" decided

scraped() {
	local up
	up=$(curl -s "$prometheus/api/v1/query" --data-urlencode 'query=count(up{job="streamcounter"} == 1)')
	case $up in *',"3"]'*) ;; *) return 1 ;; esac
	up=$(curl -s "$prometheus/api/v1/query" --data-urlencode 'query=sum(streamcounter_events_folded_total)')
	case $up in *',"100"]'*) ;; *) return 1 ;; esac
}
step "Prometheus scrapes serve and both workers, which folded 100 events"
within 30 "Prometheus does not see three targets up and 100 events folded" scraped
quiet() { curl -s "$prometheus/api/v1/alerts" | grep -q '"alerts":\[\]'; }
within 1 "an alert is pending or firing" quiet

step "Redis keeps it all over a restart"
"${compose[@]}" restart -t 10 redis >/dev/null 2>&1
within 30 "not healthy after Redis restarted" healthy
within 10 "the check is not denied after Redis restarted" denied

step "a clean stop leaves nothing pending"
"${compose[@]}" stop -t 20 work1 work2 >/dev/null 2>&1
pending=$(redis XINFO GROUPS "$events" | awk 'last == "pending" {print} {last = $0}')
[ "$pending" = 0 ] || fail "$pending events are pending after a clean stop"
for w in work1 work2; do
	code=$(docker inspect -f '{{.State.ExitCode}}' "$("${compose[@]}" ps -a -q "$w")" 2>/dev/null || echo unknown)
	[ "$code" = 0 ] || fail "$w exited with $code"
done
step "passed"
