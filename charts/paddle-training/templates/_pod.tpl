{{/* What every pod is told. */}}
{{- define "paddle-training.commonEnv" -}}
- name: JOB_NAME
  value: {{ .Values.jobName | quote }}
- name: JOB_PATH
  value: {{ .Values.jobPath | quote }}
- name: JOB_NAMESPACE
  value: {{ .Release.Namespace | quote }}
- name: PADDLE_LAUNCHER_RELEASE
  value: {{ .Release.Name | quote }}
- name: PADDLE_LAUNCHER_RUN_ID
  value: {{ .Values.runId | quote }}
- name: PADDLE_LAUNCHER_DATA_DIGEST
  value: {{ include "paddle-training.dataDigest" . | quote }}
- name: PADDLE_LAUNCHER_LOG_FORMAT
  value: {{ .Values.logFormat | quote }}
- name: PADDLE_LAUNCHER_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: PADDLE_LAUNCHER_POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
- name: PADDLE_LAUNCHER_NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
# The Job's name and uid, as Kubernetes writes them on its pods.
- name: PADDLE_LAUNCHER_K8S_JOB
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}
- name: PADDLE_LAUNCHER_K8S_JOB_UID
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/controller-uid']"}}
# Libraries keep small files at home, and the pods' user has none in the image.
- name: HOME
  value: /tmp
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of a pod. Takes (dict "root" $ "component" "training" "annotations" <more of them>). */}}
{{- define "paddle-training.podMetadata" -}}
labels:
  {{- include "paddle-training.selectorLabels" . | nindent 2 }}
  {{- with .root.Values.podLabels }}{{ toYaml . | nindent 2 }}{{ end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What both pods' specs have in common. */}}
{{- define "paddle-training.podCommon" -}}
restartPolicy: Never
serviceAccountName: {{ include "paddle-training.serviceAccount" . }}
# Services of a namespace would otherwise appear as PADDLE_…_PORT variables, which Paddle reads.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.podSecurity.runAsUser | int64 }}
  runAsGroup: {{ .Values.podSecurity.runAsGroup | int64 }}
  fsGroup: {{ .Values.podSecurity.fsGroup | int64 }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.scheduling.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.scheduling.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* What all containers have in common. Takes (dict "root" $ "command" "train"). */}}
{{- define "paddle-training.containerCommon" -}}
image: {{ .root.Values.image | quote }}
imagePullPolicy: {{ .root.Values.imagePullPolicy }}
command: ["python", "-m", "launcher", {{ .command | quote }}]
# The launcher writes the cause of an end itself; should it be killed, the log's last lines stand for it.
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  readOnlyRootFilesystem: {{ .root.Values.podSecurity.readOnlyRootFilesystem }}
{{- end -}}

{{/* Volumes of a pod: the shared storage, scratch folders, a person's own. */}}
{{- define "paddle-training.volumes" -}}
- name: jobpath
  persistentVolumeClaim: {claimName: {{ include "paddle-training.claim" . | quote }}}
- name: tmp
  emptyDir: {}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where they are mounted. */}}
{{- define "paddle-training.mounts" -}}
- {name: jobpath, mountPath: {{ .Values.jobPath | quote }}}
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Requests and limits as given. Takes .Values.resources or .Values.data.resources. */}}
{{- define "paddle-training.resources" -}}
resources: {{- toYaml . | nindent 2 }}
{{- end -}}

{{/* What an end of a pod means (the launcher's exit codes: docs/contracts.md). The first rule that fits counts. A
     disruption comes before the final codes: an evicted pod may end with one only because of its node (a full disk),
     and where it is final for the run, the replacement or the other ranks end with it too. */}}
{{- define "paddle-training.podFailurePolicy" -}}
podFailurePolicy:
  rules:
    - action: Ignore
      onPodConditions: [{type: DisruptionTarget, status: "True"}]
    - action: FailJob
      onExitCodes: {operator: In, values: [64, 65, 70, 75]}
    # A twin that gave way, and a pod that was told to stop: neither says anything about the run.
    - action: Ignore
      onExitCodes: {operator: In, values: [69, 143]}
{{- end -}}
