{{/* The settings of a Job's pods, as JSON: the values that the launcher reads, by their own names, and what the chart
     derives from them and from the release. They hold no secret. An annotation of the pods has them, and a volume shows it
     as a file. Unlike variables, nothing expands $(NAME) in it; unlike a ConfigMap, it is part of the Job's immutable
     template and digest, and an upgrade leaves it to the pods of a Job that still runs, also one of training.schedule.
     Without nulls, because Helm's versions differ in whether a default null is absent. Takes (list $ <"training" or
     "data">). */}}
{{- define "paddle-training.settings" -}}
{{- $root := index . 0 -}}
{{- $v := $root.Values -}}
{{- $preparedBy := include "paddle-training.dataPreparedBy" $root -}}
{{- $release := dict "name" $root.Release.Name "dataDigest" (include "paddle-training.dataDigest" $root) -}}
{{- $changed := dict "preparedBy" $preparedBy "sha256" (lower $v.data.sha256) "delimiter" (include "paddle-training.delimiter" $root) -}}
{{- $data := merge $changed (omit $v.data "enabled" "splitCount" "waitSeconds" "cache" "podSpecPatch" "resources") -}}
{{- $settings := dict "release" $release "training" (pick $v.training "schedule") "data" $data -}}
{{- if eq (index . 1) "training" -}}
{{- $isScript := eq (include "paddle-training.isScript" $root) "true" -}}
{{- $release := merge $release (dict
  "service" (include "paddle-training.fullname" $root)
  "sourceDigest" ($isScript | ternary (include "paddle-training.sourceValues" $root | sha256sum) "")
  "gpusPerPod" (include "paddle-training.gpus" $root | int64)) -}}
{{- $processes := dict "processesPerPod" (include "paddle-training.processesPerPod" $root | int64) -}}
{{- if eq $v.runtime "ps" -}}{{- $processes = set $processes "servers" (include "paddle-training.servers" $root | int64) -}}{{- end -}}
{{- $settings = dict
  "release" $release
  "peerPort" (include "paddle-training.peerPort" $root | int64)
  "training" (merge $processes (omit $v.training "deadlineSeconds" "sharedMemory"))
  "data" (merge (pick $v.data "waitSeconds" "cache") (ternary $data dict (eq $preparedBy "trainingPods")))
  "notify" (pick $v.notify "events")
  | merge (pick $v "tracking" "startFromScratch" "runtime" "rendezvous" "rendezvousSeconds") -}}
{{- end -}}
{{- /* An elastic run reads the present number of trainers from a variable, so that it may change in an existing Job. */}}
{{- $trainers := dict "trainers" (include "paddle-training.maxTrainers" $root | int64) -}}
{{- if and (eq (index . 1) "training") (eq (include "paddle-training.isElastic" $root) "true") -}}
{{- $_ := set $settings.training "maxTrainers" $trainers.trainers -}}
{{- end -}}
{{- $settings = merge (pick $v "runId" "logFormat") $trainers $settings | deepCopy -}}
{{- include "paddle-training.removeNulls" $settings -}}
{{- toJson $settings -}}
{{- end -}}

{{/* Environment of every pod. A variable in env overrides one of envFrom. */}}
{{- define "paddle-training.commonEnv" -}}
- name: JOB_NAME
  value: {{ .Values.jobName | quote }}
- name: JOB_PATH
  value: {{ .Values.jobPath | quote }}
- name: JOB_NAMESPACE
  value: {{ .Release.Namespace | quote }}
# Name and uid of the Job, from labels that Kubernetes sets on its pods.
- name: PADDLE_LAUNCHER_K8S_JOB
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}
- name: PADDLE_LAUNCHER_K8S_JOB_UID
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}}
- name: PADDLE_LAUNCHER_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: PADDLE_LAUNCHER_POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: PADDLE_LAUNCHER_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
# Some libraries write small files to HOME, and the pods' user has no home folder in the image.
- name: HOME
  value: /tmp
{{- range .Values.extraEnv }}
{{- /* The image needs its own PYTHONPATH; the launcher adds this one to the script's. */}}
{{ eq .name "PYTHONPATH" | ternary (merge (dict "name" "PADDLE_LAUNCHER_PYTHONPATH") .) . | list | toYaml }}
{{- end }}
{{- end -}}

{{/* A pod's spec with a merge patch, as text. Takes (list <the spec as text> <the patch>). */}}
{{- define "paddle-training.patchedPodSpec" -}}
{{- $patch := index . 1 -}}
{{- if $patch -}}
{{- $spec := mustMergeOverwrite (index . 0 | fromYaml) (deepCopy $patch) -}}
{{- include "paddle-training.removeNulls" $spec -}}
{{- toYaml $spec -}}
{{- else -}}
{{- index . 0 -}}
{{- end -}}
{{- end -}}

{{/* Remove the fields that are null from a dict and from the dicts in it, not from those in lists. */}}
{{- define "paddle-training.removeNulls" -}}
{{- range $field, $value := . -}}
{{- if kindIs "invalid" $value -}}{{- $_ := unset $ $field -}}{{- end -}}
{{- if kindIs "map" $value -}}{{- include "paddle-training.removeNulls" $value -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels and annotations of a pod of a Job. Takes (dict "root" $ "component" <"training" or "data"> "annotations" <these
     override podAnnotations> "defaults" <podAnnotations override these>). */}}
{{- define "paddle-training.podMetadata" -}}
labels:
  {{- include "paddle-training.selectorLabels" . | nindent 2 }}
  {{- with .root.Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- $settings := dict "paddle-training/settings" (include "paddle-training.settings" (list .root .component)) }}
annotations: {{- merge $settings (.annotations | default dict) .root.Values.podAnnotations (.defaults | default dict) | toYaml | nindent 2 }}
{{- end -}}

{{/* Common part of the specs of data and training pods. */}}
{{- define "paddle-training.podCommon" -}}
restartPolicy: Never
serviceAccountName: {{ include "paddle-training.serviceAccount" . }}
# Without this, Services of the namespace become PADDLE_…_PORT variables, which Paddle reads.
enableServiceLinks: false
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $architecture := dict -}}
{{- with .Values.scheduling.architecture -}}{{- $architecture = dict "kubernetes.io/arch" . -}}{{- end -}}
{{- with merge (dict) .Values.scheduling.nodeSelector $architecture }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.scheduling.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* Common part of all containers. Takes (dict "root" $ "command" (list "python" …)). */}}
{{- define "paddle-training.containerCommon" -}}
image: {{ .root.Values.image | quote }}
imagePullPolicy: {{ .root.Values.imagePullPolicy }}
command: {{ .command | toJson }}
# The launcher writes the termination message itself; if it is killed, Kubernetes uses the last log lines.
terminationMessagePolicy: FallbackToLogsOnError
securityContext: {{- toYaml .root.Values.securityContext | nindent 2 }}
{{- with .root.Values.extraEnvFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Volumes of a pod: the shared storage, the settings, a scratch folder, and extraVolumes. */}}
{{- define "paddle-training.volumes" -}}
- name: jobpath
  persistentVolumeClaim: {claimName: {{ include "paddle-training.claim" . | quote }}}
- name: settings
  downwardAPI: {items: [{path: settings.json, fieldRef: {fieldPath: "metadata.annotations['paddle-training/settings']"}}]}
- name: tmp
  emptyDir: {}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Mounts of these volumes. */}}
{{- define "paddle-training.mounts" -}}
- {name: jobpath, mountPath: {{ .Values.jobPath | quote }}}
- {name: settings, mountPath: /etc/paddle-training}
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Requests and limits as given. Takes .Values.resources or .Values.data.resources. */}}
{{- define "paddle-training.resources" -}}
resources: {{- toYaml . | nindent 2 }}
{{- end -}}

{{/* How the Job treats a failed pod, by the launcher's exit code (docs/how-to/troubleshooting.md). The first matching rule
     applies. The rule for disruptions comes first: an evicted pod may exit with a final code only because of its node
     (a full disk). If the failure is final for the run, its replacement or the other ranks exit with the code too. */}}
{{- define "paddle-training.podFailurePolicy" -}}
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
    - action: FailJob
      onExitCodes: {operator: In, values: [64, 65, 70, 75]}
    # 69: a second pod of a rank that gave way. 143: a pod stopped by SIGTERM. Neither is a failure of the run.
    - action: Ignore
      onExitCodes: {operator: In, values: [69, 143]}
{{- end -}}
