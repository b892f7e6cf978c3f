{{- define "streamcounter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Up to 52 characters: the longest suffix is -extractors. */}}
{{- define "streamcounter.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "streamcounter.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "streamcounter.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The components of the release, as a JSON list; ratelimit.yaml has the one that stands alone. */}}
{{- define "streamcounter.components" -}}
{{- ternary (list) (list "serve" "work") .Values.ratelimit.enabled | toJson -}}
{{- end -}}

{{- define "streamcounter.selector" -}}
app.kubernetes.io/name: {{ include "streamcounter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "streamcounter.labels" -}}
{{ include "streamcounter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "streamcounter.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The Secrets and ConfigMaps that pods mount: created here, or existing ones. */}}
{{- define "streamcounter.redisSecret" -}}
{{- .Values.redis.existingSecret | default (printf "%s-redis" (include "streamcounter.fullname" .)) -}}
{{- end -}}
{{- define "streamcounter.natsSecret" -}}
{{- .Values.nats.existingSecret | default (printf "%s-nats" (include "streamcounter.fullname" .)) -}}
{{- end -}}
{{- define "streamcounter.tokensSecret" -}}
{{- .Values.access.existingSecret | default (printf "%s-tokens" (include "streamcounter.fullname" .)) -}}
{{- end -}}
{{- define "streamcounter.rulesConfigMap" -}}
{{- .Values.existingRulesConfigMap | default (printf "%s-rules" (include "streamcounter.fullname" .)) -}}
{{- end -}}

{{- define "streamcounter.hasTokens" -}}
{{- if or .Values.access.tokens .Values.access.existingSecret }}true{{ end -}}
{{- end -}}
{{- define "streamcounter.hasRules" -}}
{{- if or .Values.rules .Values.existingRulesConfigMap }}true{{ end -}}
{{- end -}}

{{/*
The replicas of a Deployment: (dict "root" $ "component" "serve" "values" .Values.serve). Nothing where an autoscaler
sets them and Helm's last manifest had none: then neither an upgrade nor a rollback touches them. Where that manifest
had them, leaving them out would set them to 1 (a patch to null, or a field that nobody owns any more), so the number
of now stays in. The annotation streamcounter/replicas tells the two apart. With server-side apply (Helm 4) the fields
that Helm owns tell: it owns the replicas no longer once the autoscaler has changed them.
*/}}
{{- define "streamcounter.replicas" -}}
{{- if not (dig "autoscaling" "enabled" false .values) -}}
{{- .values.replicas -}}
{{- else -}}
{{- $name := printf "%s-%s" (include "streamcounter.fullname" .root) .component -}}
{{- with lookup "apps/v1" "Deployment" .root.Release.Namespace $name -}}
{{- $ours := ne (dig "metadata" "annotations" "streamcounter/replicas" "" .) "autoscaler" -}}
{{- range dig "metadata" "managedFields" list . -}}
{{- if and (eq .manager "helm") (eq .operation "Apply") -}}
{{- $ours = hasKey (dig "fieldsV1" "f:spec" dict .) "f:replicas" -}}
{{- end -}}
{{- end -}}
{{- if $ours }}{{ .spec.replicas }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Ports of the collectors that env names, as a JSON list. */}}
{{- define "streamcounter.otlpPorts" -}}
{{- $ports := list -}}
{{- range list "OTEL_EXPORTER_OTLP_ENDPOINT" "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" -}}
{{- with index $.Values.env . -}}
{{- $url := urlParse . -}}
{{- $port := regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) -}}
{{- $ports = append $ports (int $port) -}}
{{- end -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}

{{/* Extra volumes and mounts of a component may not take what the chart takes: (dict "component" "serve" "values" .) */}}
{{- define "streamcounter.validateVolumes" -}}
{{- $component := .component -}}
{{- $own := list "redis" "redis-tls" "nats" "nats-tls" "rules" "rls" "extractors" "tokens" "tls" -}}
{{- $names := $own -}}
{{- range .values.extraVolumes -}}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" .name) }}{{ fail (printf "%s.extraVolumes: the name %s is not one of a-z, 0-9 and -" $component .name) }}{{ end -}}
{{- if has .name $names }}{{ fail (printf "%s.extraVolumes: the name %s is taken" $component .name) }}{{ end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $paths := list -}}
{{- range $own }}{{ $paths = append $paths (printf "/etc/streamcounter/%s" .) }}{{ end -}}
{{- range .values.extraVolumeMounts -}}
{{- if not (has .name $names) }}{{ fail (printf "%s.extraVolumeMounts: there is no volume %s" $component .name) }}{{ end -}}
{{- if not (regexMatch "^/[^:]*$" .mountPath) }}{{ fail (printf "%s.extraVolumeMounts: the mountPath %s is not absolute, or has a colon" $component .mountPath) }}{{ end -}}
{{- if has (clean .mountPath) $paths }}{{ fail (printf "%s.extraVolumeMounts: the mountPath %s is taken" $component .mountPath) }}{{ end -}}
{{- $paths = append $paths (clean .mountPath) -}}
{{- end -}}
{{- end -}}

{{/* What would only fail when the pods start, or at the API server, fails here. */}}
{{- define "streamcounter.validate" -}}
{{- $fullname := include "streamcounter.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $fullname) }}{{ fail (printf "the name %s cannot be that of a Service (a-z, 0-9 and -, beginning with a letter): set fullnameOverride" $fullname) }}{{ end -}}
{{- range $component := include "streamcounter.components" . | fromJsonArray -}}
{{- include "streamcounter.validateVolumes" (dict "component" $component "values" (index $.Values $component)) -}}
{{- end -}}
{{- with .Values -}}
{{- if and .redis.url .redis.existingSecret }}{{ fail "redis: give url or existingSecret, not both" }}{{ end -}}
{{- if not (or .redis.url .redis.existingSecret) }}{{ fail "redis: give url or existingSecret" }}{{ end -}}
{{- if and .redis.workURL (not .redis.url) }}{{ fail "redis.workURL needs redis.url; with existingSecret give workKey" }}{{ end -}}
{{- if and .redis.clientCertificate (not .redis.tlsSecret) }}{{ fail "redis.clientCertificate needs redis.tlsSecret" }}{{ end -}}
{{- if .ratelimit.enabled -}}
{{- if .networkPolicy.enabled }}{{ fail "networkPolicy: the chart has no NetworkPolicy for ratelimit; apply one of your own" }}{{ end -}}
{{- if .serve.autoscaling.enabled }}{{ fail "serve.autoscaling: the chart has no autoscaler for ratelimit; set ratelimit.replicas" }}{{ end -}}
{{- else -}}
{{- if and .nats.url .nats.existingSecret }}{{ fail "nats: give url or existingSecret, not both" }}{{ end -}}
{{- if not (or .nats.url .nats.existingSecret) }}{{ fail "nats: give url or existingSecret" }}{{ end -}}
{{- if and (or .nats.credsKey .nats.nkeyKey) (not .nats.existingSecret) }}{{ fail "nats.credsKey and nats.nkeyKey are keys of nats.existingSecret, which is empty" }}{{ end -}}
{{- if and .nats.credsKey .nats.nkeyKey }}{{ fail "nats: give credsKey or nkeyKey, not both" }}{{ end -}}
{{- if and .nats.clientCertificate (not .nats.tlsSecret) }}{{ fail "nats.clientCertificate needs nats.tlsSecret" }}{{ end -}}
{{- if and .access.tokens .access.existingSecret }}{{ fail "access: give tokens or existingSecret, not both" }}{{ end -}}
{{- if and .access.clientCA (not .access.tlsSecret) }}{{ fail "access.clientCA needs access.tlsSecret" }}{{ end -}}
{{- if not (or .access.open .access.tokens .access.existingSecret .access.clientCA) }}{{ fail "access: give tokens, existingSecret or clientCA, or open: true" }}{{ end -}}
{{- if and .access.open (or .access.tokens .access.existingSecret .access.clientCA) }}{{ fail "access.open: true lets everybody in; take it out, or tokens, existingSecret and clientCA" }}{{ end -}}
{{- if and .rules .existingRulesConfigMap }}{{ fail "give rules or existingRulesConfigMap, not both" }}{{ end -}}
{{- if not (or .rules .existingRulesConfigMap .rlsConfig) }}{{ fail "give rules, existingRulesConfigMap or rlsConfig" }}{{ end -}}
{{- if and .serve.service.headless (ne .serve.service.type "ClusterIP") }}{{ fail (printf "serve.service: headless goes with type ClusterIP alone, not with %s" .serve.service.type) }}{{ end -}}
{{- if and .serve.autoscaling.enabled (gt (int .serve.autoscaling.minReplicas) (int .serve.autoscaling.maxReplicas)) }}{{ fail "serve.autoscaling: minReplicas is above maxReplicas" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
