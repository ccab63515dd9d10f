{{/* Which pods prepare the data: `dataJob`, `trainingPods` (always with training.schedule), or empty with data.enabled
     false. */}}
{{- define "paddle-training.dataPreparedBy" -}}
{{- if .Values.data.enabled }}{{ ternary "trainingPods" .Values.data.preparedBy (ne .Values.training.schedule "") }}{{ end -}}
{{- end -}}

{{/* Environment of a pod that prepares the data, in addition to commonEnv: the variables of the tutorial of 2017, and the
     address of data.sourceSecret. */}}
{{- define "paddle-training.dataEnv" -}}
- name: OUT_DIR
  value: {{ printf "%s/%s" (trimSuffix "/" .Values.jobPath) .Values.jobName | quote }}
- name: SPLIT_COUNT
  value: {{ include "paddle-training.splitCount" . | quote }}
{{- with .Values.data.sourceSecret }}
{{- if .name }}
- name: PADDLE_LAUNCHER_DATA_SOURCE
  valueFrom: {secretKeyRef: {name: {{ .name | quote }}, key: {{ .key | quote }}}}
{{- end }}
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
      {{- include "paddle-training.dataEnv" . | trim | nindent 6 }}
    {{- include "paddle-training.resources" $data.resources | nindent 4 }}
    volumeMounts:
      {{- include "paddle-training.mounts" . | nindent 6 }}
volumes:
  {{- include "paddle-training.volumes" . | nindent 2 }}
{{- end -}}
