{{/* What the containers of ranks and agent have in common. */}}
{{- define "sentinel.environment" -}}
- {name: SENTINEL_RUN_ID, value: {{ .Values.run | quote }}}
- {name: SENTINEL_CONFIG, value: /etc/sentinel/sentinel.toml}
- {name: SENTINEL_HOST, value: "0.0.0.0"}
- {name: SENTINEL_TOKEN_FILE, value: /etc/sentinel/token}
- {name: SENTINEL_HOME, value: /var/lib/sentinel/home}
- {name: SENTINEL_RUNTIME_DIR, value: /dev/shm/sentinel}
{{- end }}
{{- define "sentinel.ports" -}}
ports:
  - {name: metrics, containerPort: 13130}
{{- end }}
{{- define "sentinel.access" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
volumeMounts:
  - {name: rings, mountPath: /dev/shm}
  - {name: state, mountPath: /var/lib/sentinel}
  - {name: settings, mountPath: /etc/sentinel, readOnly: true}
  - {name: tmp, mountPath: /tmp}
{{- end }}
