{{/* Which pods prepare the data: `dataJob`, `trainingPods` (always with training.schedule), or empty with data.enabled
     false. */}}
{{- define "paddle-training.dataPreparedBy" -}}
{{- if .Values.data.enabled }}{{ ternary "trainingPods" .Values.data.preparedBy (ne .Values.training.schedule "") }}{{ end -}}
{{- end -}}

{{/* Environment of a pod that prepares the data, in addition to commonEnv. Takes (list $ <number of these pods>). */}}
{{- define "paddle-training.dataEnv" -}}
{{- $root := index . 0 -}}
{{- $data := $root.Values.data -}}
{{- range $name, $value := dict
  "OUT_DIR" (printf "%s/%s" (trimSuffix "/" $root.Values.jobPath) $root.Values.jobName)
  "SPLIT_COUNT" (include "paddle-training.splitCount" $root)
  "PADDLE_LAUNCHER_DATA_SOURCE" $data.source
  "PADDLE_LAUNCHER_DATA_SHA256" (lower $data.sha256)
  "PADDLE_LAUNCHER_DATA_MEMBER" $data.member
  "PADDLE_LAUNCHER_DATA_TABLES" (toJson $data.tables)
  "PADDLE_LAUNCHER_DATA_FORMAT" $data.format
  "PADDLE_LAUNCHER_DATA_DELIMITER" (include "paddle-training.delimiter" $root)
  "PADDLE_LAUNCHER_DATA_HEADER" $data.header
  "PADDLE_LAUNCHER_DATA_COLUMNS" (toJson $data.columns)
  "PADDLE_LAUNCHER_DATA_ENCODING" $data.encoding
  "PADDLE_LAUNCHER_DATA_SEED" (int64 $data.seed)
  "PADDLE_LAUNCHER_DATA_TEST_FRACTION" $data.testFraction
  "PADDLE_LAUNCHER_DATA_TEST_SOURCE" $data.testSource
  "PADDLE_LAUNCHER_DATA_TEST_ROWS" (int64 $data.testRows)
  "PADDLE_LAUNCHER_DATA_WORKERS" (index . 1 | int64)
  "PADDLE_LAUNCHER_DATA_DEADLINE_SECONDS" (kindIs "invalid" $data.deadlineSeconds | ternary "" (toString (int64 $data.deadlineSeconds))) }}
- name: {{ $name }}
{{- if and $data.sourceSecret.name (eq $name "PADDLE_LAUNCHER_DATA_SOURCE") }}
  valueFrom: {secretKeyRef: {name: {{ $data.sourceSecret.name | quote }}, key: {{ $data.sourceSecret.key | quote }}}}
{{- else }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- with $data.sourceSecret.name }}
# What messages and the manifest show instead of the address.
- name: PADDLE_LAUNCHER_DATA_SOURCE_SECRET
  value: {{ printf "%s/%s" . $data.sourceSecret.key | quote }}
{{- end }}
{{- if ne $data.quoting "minimal" }}
- name: PADDLE_LAUNCHER_DATA_QUOTING
  value: {{ $data.quoting }}
{{- end }}
{{- end -}}

{{/* The immutable part of the data Job, whose name contains a digest of it. */}}
{{- define "paddle-training.dataSpec" -}}
{{- $data := .Values.data -}}
completionMode: Indexed
completions: {{ $data.workers | int64 }}
parallelism: {{ $data.workers | int64 }}
{{- /* A failure without a final exit code (a lost node, a kill) is retried; finished parts are kept. */}}
backoffLimitPerIndex: 3
maxFailedIndexes: 0
{{ include "paddle-training.podFailurePolicy" . }}
podReplacementPolicy: Failed
template:
  metadata:
    {{- include "paddle-training.podMetadata" (dict "root" . "component" "data") | nindent 4 }}
  spec:
    {{- include "paddle-training.patchedPodSpec" (list (include "paddle-training.dataPodSpec" .) .Values.data.podSpecPatch) | nindent 4 }}
{{- end -}}

{{/* The spec of a pod of the data Job, without data.podSpecPatch. */}}
{{- define "paddle-training.dataPodSpec" -}}
{{- $data := .Values.data -}}
automountServiceAccountToken: false
{{- include "paddle-training.podCommon" . | nindent 0 }}
{{- with .Values.scheduling.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: prepare
    {{- include "paddle-training.containerCommon" (dict "root" . "command" (list "python" "-m" "launcher" "prepare")) | nindent 4 }}
    env:
      {{- include "paddle-training.commonEnv" . | nindent 6 }}
      {{- include "paddle-training.dataEnv" (list . $data.workers) | trim | nindent 6 }}
    {{- include "paddle-training.resources" $data.resources | nindent 4 }}
    volumeMounts:
      {{- include "paddle-training.mounts" . | nindent 6 }}
volumes:
  {{- include "paddle-training.volumes" . | nindent 2 }}
{{- end -}}
