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

{{/* What would only fail when the pods start, fails here. */}}
{{- define "streamcounter.validate" -}}
{{- with .Values -}}
{{- if and .redis.url .redis.existingSecret }}{{ fail "redis: give url or existingSecret, not both" }}{{ end -}}
{{- if not (or .redis.url .redis.existingSecret) }}{{ fail "redis: give url or existingSecret" }}{{ end -}}
{{- if and .redis.workURL (not .redis.url) }}{{ fail "redis.workURL needs redis.url; with existingSecret give workKey" }}{{ end -}}
{{- if and .redis.clientCertificate (not .redis.tlsSecret) }}{{ fail "redis.clientCertificate needs redis.tlsSecret" }}{{ end -}}
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
{{- if and .serve.autoscaling.enabled (gt (int .serve.autoscaling.minReplicas) (int .serve.autoscaling.maxReplicas)) }}{{ fail "serve.autoscaling: minReplicas is above maxReplicas" }}{{ end -}}
{{- end -}}
{{- end -}}
