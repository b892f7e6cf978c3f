{{/* Files are readable by the pod's group alone. */}}
{{- define "streamcounter.volumes" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $serve := eq .component "serve" -}}
volumes:
  - name: redis
    secret:
      secretName: {{ include "streamcounter.redisSecret" $root }}
      defaultMode: 0440
      items:
        {{- $key := ternary $v.redis.key "redis-url" (ne $v.redis.existingSecret "") }}
        {{- if not $serve }}
        {{- if $v.redis.workKey }}{{ $key = $v.redis.workKey }}{{ else if $v.redis.workURL }}{{ $key = "redis-work-url" }}{{ end }}
        {{- end }}
        - {key: {{ $key }}, path: url}
  {{- with $v.redis.tlsSecret }}
  - name: redis-tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- if not $serve }}
  - name: nats
    secret:
      secretName: {{ include "streamcounter.natsSecret" $root }}
      defaultMode: 0440
      items:
        - {key: {{ ternary $v.nats.key "nats-url" (ne $v.nats.existingSecret "") }}, path: url}
        {{- with $v.nats.credsKey }}
        - {key: {{ . }}, path: creds}
        {{- end }}
        {{- with $v.nats.nkeyKey }}
        - {key: {{ . }}, path: nkey}
        {{- end }}
  {{- with $v.nats.tlsSecret }}
  - name: nats-tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- end }}
  {{- if include "streamcounter.hasRules" $root }}
  - name: rules
    configMap: {name: {{ include "streamcounter.rulesConfigMap" $root }}}
  {{- end }}
  {{- if $v.rlsConfig }}
  - name: rls
    configMap: {name: {{ include "streamcounter.fullname" $root }}-rls}
  {{- end }}
  {{- if and $serve $v.extractors }}
  - name: extractors
    configMap: {name: {{ include "streamcounter.fullname" $root }}-extractors}
  {{- end }}
  {{- if include "streamcounter.hasTokens" $root }}
  - name: tokens
    secret:
      secretName: {{ include "streamcounter.tokensSecret" $root }}
      defaultMode: 0440
      items:
        - {key: {{ ternary $v.access.key "tokens.yml" (ne $v.access.existingSecret "") }}, path: tokens.yml}
  {{- end }}
  {{- with $v.access.tlsSecret }}
  - name: tls
    secret: {secretName: {{ . }}, defaultMode: 0440}
  {{- end }}
  {{- with .values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/*
Probes go to a port of their own, in plain text: the kubelet has no client certificate, and a probe that only opens a
connection to a port with TLS leaves a failed handshake in the log. serve stays in the Service while Redis is away, as
on_error decides its checks then.
*/}}
{{- define "streamcounter.probes" -}}
startupProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 10
  timeoutSeconds: 3
readinessProbe:
  httpGet: {path: {{ ternary "/healthz" "/readyz" (eq .component "serve") }}, port: health}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}
