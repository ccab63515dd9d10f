{{/*
All that is immutable in the training Job. Takes (dict "root" $ "job" <its name, or the placeholder of the digest>).
A lost pod comes back (backoffLimitPerIndex), but only once the old one has ended: two pods of one rank would both
write. One index that fails for good fails the Job: a gang cannot go on without a member. The launcher counts the
restarts (docs/adr/0004); Kubernetes' own count cannot know what a save is, so it is ten times as high, and bounds only
pods that never get as far as to be counted.
*/}}
{{- define "paddle-training.trainingSpec" -}}
{{- $root := .root -}}
completionMode: Indexed
completions: {{ $root.Values.trainers | int64 }}
parallelism: {{ $root.Values.trainers | int64 }}
backoffLimitPerIndex: {{ mul 10 $root.Values.training.restarts }}
maxFailedIndexes: 0
podReplacementPolicy: Failed
{{ include "paddle-training.podFailurePolicy" $root }}
template:
  metadata:
    labels: {{- include "paddle-training.selectorLabels" (dict "root" $root "component" "training") | nindent 6 }}
    {{- with $root.Values.scheduling.annotations }}
    annotations: {{- toYaml . | nindent 6 }}
    {{- end }}
  spec:
    subdomain: {{ $root.Release.Name }}
    automountServiceAccountToken: {{ include "paddle-training.needsApi" $root | eq "true" }}
    terminationGracePeriodSeconds: {{ $root.Values.training.terminationGracePeriodSeconds | int64 }}
    {{- include "paddle-training.podCommon" $root | nindent 4 }}
    {{- include "paddle-training.trainingTolerations" $root | trim | nindent 4 }}
    {{- include "paddle-training.placement" $root | trim | nindent 4 }}
    initContainers:
      - name: await-data
        {{- include "paddle-training.containerCommon" (dict "root" $root "command" "await-data") | nindent 8 }}
        env: &env
          {{- include "paddle-training.commonEnv" . | nindent 10 }}
          {{- include "paddle-training.trainingEnv" . | trim | nindent 10 }}
        {{- include "paddle-training.resources" $root.Values.resources | nindent 8 }}
        volumeMounts: &mounts
          - {name: jobpath, mountPath: {{ $root.Values.jobPath | quote }}}
          - {name: work, mountPath: /work}
          - {name: tmp, mountPath: /tmp}
    containers:
      - name: train
        {{- include "paddle-training.containerCommon" (dict "root" $root "command" "train") | nindent 8 }}
        env: *env
        ports:
          {{- include "paddle-training.ports" $root | trim | nindent 10 }}
        # A frozen launcher cannot end its own children, so the kubelet must.
        livenessProbe:
          httpGet: {path: /healthz, port: peers}
          initialDelaySeconds: 20
          periodSeconds: 10
          timeoutSeconds: 10
          failureThreshold: 6
        {{- include "paddle-training.resources" $root.Values.resources | nindent 8 }}
        volumeMounts: *mounts
    volumes:
      - name: jobpath
        persistentVolumeClaim: {claimName: {{ include "paddle-training.claim" $root | quote }}}
      - name: work
        emptyDir: {{ if $root.Values.workDir.sizeLimit }}{sizeLimit: {{ $root.Values.workDir.sizeLimit | quote }}}{{ else }}{}{{ end }}
      - name: tmp
        emptyDir: {}
{{- end -}}
