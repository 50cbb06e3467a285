{{/* What the pods of service, worker and migration share. Takes root, and the configuration's name as `config`. */}}
{{- define "icewright.pod" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: configuration
    configMap: {name: {{ .config }}}
  - name: state
    emptyDir: {}
  - name: cache
    emptyDir: {sizeLimit: {{ .root.Values.cache.sizeLimit }}}
  - name: tmp
    emptyDir: {}
{{- with .root.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "icewright.container" -}}
image: {{ printf "%s:%s%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) (empty .Values.image.digest | ternary "" (printf "@%s" .Values.image.digest)) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
  {{- range $name, $from := .Values.secretEnv }}
  - name: {{ $name }}
    valueFrom: {secretKeyRef: {name: {{ $from.name | quote }}, key: {{ $from.key | quote }}}}
  {{- end }}
  {{- range $name, $value := .Values.env }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
  - name: POD_IP
    valueFrom: {fieldRef: {fieldPath: status.podIP}}
volumeMounts:
  - {name: configuration, mountPath: /etc/icewright, readOnly: true}
  - {name: state, mountPath: /var/lib/icewright}
  - {name: cache, mountPath: /var/cache/icewright}
  - {name: tmp, mountPath: /tmp}
{{- end -}}
