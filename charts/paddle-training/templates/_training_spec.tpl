{{/*
The immutable part of the training Job, whose name contains a digest of it.
A lost pod is replaced (backoffLimitPerIndex), but only after the old one has terminated: two pods of one rank would both
write. One index that fails for good fails the Job, because the gang cannot train without it. The launcher counts the
restarts (docs/explanation/decisions.md). Kubernetes' own count does not know about checkpoints, so its limit is ten times as high and
only bounds pods that fail before the launcher can count them.
*/}}
{{- define "paddle-training.trainingSpec" -}}
completionMode: Indexed
completions: {{ .Values.trainers | int64 }}
parallelism: {{ .Values.trainers | int64 }}
backoffLimitPerIndex: {{ mul 10 .Values.training.restarts }}
maxFailedIndexes: 0
podReplacementPolicy: Failed
{{ include "paddle-training.podFailurePolicy" . }}
template:
  metadata:
    {{- include "paddle-training.podMetadata" (dict "root" . "component" "training" "annotations" .Values.scheduling.annotations "defaults" (include "paddle-training.stayAnnotations" . | fromYaml)) | nindent 4 }}
  spec:
    {{- include "paddle-training.patchedPodSpec" (list (include "paddle-training.trainingPodSpec" .) .Values.podSpecPatch) | nindent 4 }}
{{- end -}}

{{/* The spec of a training pod, without podSpecPatch. */}}
{{- define "paddle-training.trainingPodSpec" -}}
subdomain: {{ include "paddle-training.fullname" . }}
automountServiceAccountToken: {{ include "paddle-training.needsApi" . | eq "true" }}
terminationGracePeriodSeconds: {{ .Values.training.terminationGracePeriodSeconds | int64 }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- include "paddle-training.podCommon" . | nindent 0 }}
{{- include "paddle-training.trainingTolerations" . | trim | nindent 0 }}
{{- include "paddle-training.placement" . | trim | nindent 0 }}
{{- if eq (include "paddle-training.readsData" .) "true" }}
initContainers:
  {{- if eq (include "paddle-training.dataPreparedBy" .) "trainingPods" }}
  # Like a pod of the data Job. With the requests of the training, it does not need another node.
  - name: prepare
    {{- include "paddle-training.containerCommon" (dict "root" . "command" (list "python" "-m" "launcher" "prepare")) | nindent 4 }}
    env:
      {{- include "paddle-training.commonEnv" . | nindent 6 }}
      {{- include "paddle-training.dataEnv" . | trim | nindent 6 }}
    {{- include "paddle-training.trainingResources" . | nindent 4 }}
    volumeMounts:
      {{- include "paddle-training.mounts" . | nindent 6 }}
  {{- else }}
  - name: await-data
    {{- include "paddle-training.containerCommon" (dict "root" . "command" (list "python" "-m" "launcher" "await-data")) | nindent 4 }}
    env:
      {{- include "paddle-training.commonEnv" . | nindent 6 }}
      {{- include "paddle-training.trainingEnv" . | trim | nindent 6 }}
    {{- include "paddle-training.trainingResources" . | nindent 4 }}
    volumeMounts:
      - {name: work, mountPath: /work}
      {{- include "paddle-training.mounts" . | nindent 6 }}
  {{- end }}
{{- end }}
containers:
  - name: train
    {{- include "paddle-training.containerCommon" (dict "root" . "command" (list "python" "-m" "launcher" "train")) | nindent 4 }}
    env:
      {{- include "paddle-training.commonEnv" . | nindent 6 }}
      {{- include "paddle-training.trainingEnv" . | trim | nindent 6 }}
    ports:
      {{- include "paddle-training.ports" . | trim | nindent 6 }}
    # A frozen launcher cannot stop its own processes, so the kubelet restarts the pod.
    livenessProbe:
      httpGet: {path: /healthz, port: peers}
      initialDelaySeconds: 20
      periodSeconds: 10
      timeoutSeconds: 10
      failureThreshold: 6
    {{- include "paddle-training.trainingResources" . | nindent 4 }}
    volumeMounts:
      - {name: work, mountPath: /work}
      {{- if eq (include "paddle-training.ownSharedMemory" .) "true" }}
      - {name: shared-memory, mountPath: /dev/shm}
      {{- end }}
      {{- include "paddle-training.mounts" . | nindent 6 }}
volumes:
  - name: work
    emptyDir: {{ if .Values.workDir.sizeLimit }}{sizeLimit: {{ .Values.workDir.sizeLimit | quote }}}{{ else }}{}{{ end }}
  {{- if eq (include "paddle-training.ownSharedMemory" .) "true" }}
  # Its files count against the container's memory limit. Without a sizeLimit it is as large as that limit.
  - name: shared-memory
    emptyDir: {medium: Memory{{ with .Values.training.sharedMemory }}, sizeLimit: {{ . | quote }}{{ end }}}
  {{- end }}
  {{- include "paddle-training.volumes" . | nindent 2 }}
{{- end -}}

{{/* Labels of a training Job. */}}
{{- define "paddle-training.trainingJobLabels" -}}
{{- include "paddle-training.labels" (dict "root" . "component" "training") }}
{{ include "paddle-training.queueLabel" . }}
{{- end -}}

{{/* The spec of a training Job: fields that are mutable in an existing Job, which are in no digest, and trainingSpec. */}}
{{- define "paddle-training.trainingJobSpec" -}}
{{- with .Values.training.deadlineSeconds -}}
activeDeadlineSeconds: {{ . | int64 }}
{{ end -}}
{{- if not (kindIs "invalid" .Values.ttlSecondsAfterFinished) -}}
ttlSecondsAfterFinished: {{ .Values.ttlSecondsAfterFinished | int64 }}
{{ end -}}
{{- include "paddle-training.trainingSpec" . }}
{{- end -}}
