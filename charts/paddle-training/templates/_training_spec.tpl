{{/*
All that is immutable in the training Job, whose name is a digest of it.
A lost pod comes back (backoffLimitPerIndex), but only once the old one has ended: two pods of one rank would both
write. One index that fails for good fails the Job: a gang cannot go on without a member. The launcher counts the
restarts (docs/adr/0004); Kubernetes' own count cannot know what a save is, so it is ten times as high, and bounds only
pods that never get as far as to be counted.
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
    {{- include "paddle-training.podMetadata" (dict "root" . "component" "training" "annotations" .Values.scheduling.annotations) | nindent 4 }}
  spec:
    subdomain: {{ .Release.Name }}
    automountServiceAccountToken: {{ include "paddle-training.needsApi" . | eq "true" }}
    terminationGracePeriodSeconds: {{ .Values.training.terminationGracePeriodSeconds | int64 }}
    {{- include "paddle-training.podCommon" . | nindent 4 }}
    {{- include "paddle-training.trainingTolerations" . | trim | nindent 4 }}
    {{- include "paddle-training.placement" . | trim | nindent 4 }}
    initContainers:
      - name: await-data
        {{- include "paddle-training.containerCommon" (dict "root" . "command" "await-data") | nindent 8 }}
        env: &env
          {{- include "paddle-training.commonEnv" . | nindent 10 }}
          {{- include "paddle-training.trainingEnv" . | trim | nindent 10 }}
        {{- include "paddle-training.resources" .Values.resources | nindent 8 }}
        volumeMounts: &mounts
          - {name: work, mountPath: /work}
          {{- include "paddle-training.mounts" . | nindent 10 }}
    containers:
      - name: train
        {{- include "paddle-training.containerCommon" (dict "root" . "command" "train") | nindent 8 }}
        env: *env
        ports:
          {{- include "paddle-training.ports" . | trim | nindent 10 }}
        # A frozen launcher cannot end its own children, so the kubelet must.
        livenessProbe:
          httpGet: {path: /healthz, port: peers}
          initialDelaySeconds: 20
          periodSeconds: 10
          timeoutSeconds: 10
          failureThreshold: 6
        {{- include "paddle-training.resources" .Values.resources | nindent 8 }}
        volumeMounts: *mounts
    volumes:
      - name: work
        emptyDir: {{ if .Values.workDir.sizeLimit }}{sizeLimit: {{ .Values.workDir.sizeLimit | quote }}}{{ else }}{}{{ end }}
      {{- include "paddle-training.volumes" . | nindent 6 }}
{{- end -}}
