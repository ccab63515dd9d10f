{{/*
The immutable part of the training Job, whose name contains a digest of it. Of an elastic run (training.minTrainers) the
number of pods may change, so it is not in this part. Such a Job is complete when as many pods as a run needs have exited
with 0, which they do only at the end of the whole run, although others were lost for good.
A lost pod is replaced (backoffLimitPerIndex), but only after the old one has terminated: two pods of one rank would both
write. One index that fails for good fails the Job, because the gang cannot train without it. The launcher counts the
restarts (docs/explanation/decisions.md). Kubernetes' own count does not know about checkpoints, so its limit is ten times as high and
only bounds pods that fail before the launcher can count them.
*/}}
{{- define "paddle-training.trainingSpec" -}}
completionMode: Indexed
{{- if eq (include "paddle-training.isElastic" .) "true" }}
successPolicy:
  rules:
    - succeededCount: {{ include "paddle-training.minTrainers" . }}
{{- else }}
{{- include "paddle-training.trainingPods" . | nindent 0 }}
{{- end }}
backoffLimitPerIndex: {{ mul 10 .Values.training.restarts }}
podReplacementPolicy: Failed
{{ include "paddle-training.podFailurePolicy" . }}
template:
  metadata:
    {{- include "paddle-training.podMetadata" (dict "root" . "component" "training" "annotations" .Values.scheduling.annotations "defaults" (include "paddle-training.stayAnnotations" . | fromYaml)) | nindent 4 }}
  spec:
    {{- include "paddle-training.patchedPodSpec" (list (include "paddle-training.trainingPodSpec" .) .Values.podSpecPatch) | nindent 4 }}
{{- end -}}

{{/* The number of training pods, and of those that may fail for good. */}}
{{- define "paddle-training.trainingPods" -}}
completions: {{ .Values.trainers | int64 }}
parallelism: {{ .Values.trainers | int64 }}
maxFailedIndexes: {{ sub (.Values.trainers | int64) (include "paddle-training.minTrainers" .) }}
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

{{/* Annotations for Kueue's partial admission: it may start an elastic run with fewer pods. Kueue rejects a smallest number
     that is not below the number of pods. */}}
{{- define "paddle-training.queueAnnotations" -}}
{{- if and .Values.scheduling.queue (lt (include "paddle-training.minTrainers" . | int64) (int64 .Values.trainers)) -}}
kueue.x-k8s.io/job-min-parallelism: {{ include "paddle-training.minTrainers" . | quote }}
kueue.x-k8s.io/job-completions-equal-parallelism: "true"
{{- end -}}
{{- end -}}

{{/* The spec of a training Job: fields that are mutable in an existing Job, which are in no digest, and trainingSpec. */}}
{{- define "paddle-training.trainingJobSpec" -}}
{{- with .Values.training.deadlineSeconds -}}
activeDeadlineSeconds: {{ . | int64 }}
{{ end -}}
{{- if not (kindIs "invalid" .Values.ttlSecondsAfterFinished) -}}
ttlSecondsAfterFinished: {{ .Values.ttlSecondsAfterFinished | int64 }}
{{ end -}}
{{ if eq (include "paddle-training.isElastic" .) "true" -}}
{{- include "paddle-training.trainingPods" . }}
{{ end -}}
{{- include "paddle-training.trainingSpec" . }}
{{- end -}}
