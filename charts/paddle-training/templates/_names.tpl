{{/*
Names, and the digests in them. A Job's pod template is immutable, so the Job's name ends in a digest of everything
immutable in it: other values make a new Job, the same values change nothing.
*/}}

{{/* Digest (sha256, hex) of all values that decide the data, and of nothing else. manifest.json has it too. `none` for a
     script that reads its own data. */}}
{{- define "paddle-training.dataDigest" -}}
{{- if eq (include "paddle-training.readsData" .) "false" -}}none{{- else -}}
{{- $values := include "paddle-training.sourceValues" . | fromJson -}}
{{- set $values "splitCount" (include "paddle-training.splitCount" .) | toJson | sha256sum -}}
{{- end -}}
{{- end -}}

{{/* All values that decide the data, without the number of shards, as JSON. */}}
{{- define "paddle-training.sourceValues" -}}
{{- $data := .Values.data -}}
{{- /* Of a source in a Secret only the reference is known; data.sha256 identifies its content. */}}
{{- $others := dict -}}
{{- if $data.sourceSecret.name -}}{{- $_ := set $others "sourceSecret" $data.sourceSecret -}}{{- end -}}
{{- if ne $data.quoting "minimal" -}}{{- $_ := set $others "quoting" $data.quoting -}}{{- end -}}
{{- dict
  "jobName" .Values.jobName
  "source" $data.source
  "sha256" (lower $data.sha256)
  "member" $data.member
  "tables" $data.tables
  "format" $data.format
  "delimiter" (include "paddle-training.delimiter" .)
  "header" $data.header
  "columns" $data.columns
  "encoding" $data.encoding
  "seed" ($data.seed | int64)
  "testFraction" (toString $data.testFraction)
  "testSource" $data.testSource
  "testRows" ($data.testRows | int64)
  | merge $others | toJson -}}
{{- end -}}

{{/* Digest of a Job: of its parsed spec, so that comments and the order of keys do not matter, and of its queue, which
     Kueue does not allow to change while the Job runs. Takes (list $ <name of the template with the spec>). */}}
{{- define "paddle-training.jobDigest" -}}
{{- $spec := include (index . 1) (index . 0) | fromYaml -}}
{{- with (index . 0).Values.scheduling.queue -}}{{- $_ := set $spec "queue" . -}}{{- end -}}
{{- $spec | toJson | sha256sum | trunc 8 -}}
{{- end -}}

{{/* Name of the training Job, or with training.schedule of the CronJob, which appends a number to it for each Job. */}}
{{- define "paddle-training.trainingJob" -}}
{{- if .Values.training.schedule -}}
{{- .Values.jobName -}}
{{- else -}}
{{- printf "%s-%s" .Values.jobName (include "paddle-training.jobDigest" (list . "paddle-training.trainingSpec")) -}}
{{- end -}}
{{- end -}}

{{/* Name of the data Job. It depends on runId too, so that a new runId also repeats a failed data Job. */}}
{{- define "paddle-training.dataJob" -}}
{{- printf "%s-data-%s" .Values.jobName (include "paddle-training.jobDigest" (list . "paddle-training.dataSpec")) -}}
{{- end -}}

{{/* Names of the values that describe the cluster, not one training, as JSON. Together with a training's values file they are
     all values. The command line reads them from helm's Secret of the release: a ConfigMap is no place for extraEnv. */}}
{{- define "paddle-training.clusterValues" -}}
{{- list "fullnameOverride" "image" "imagePullPolicy" "imagePullSecrets" "jobPath" "nic" "hostPorts" "rendezvous" "logFormat" "notify" "tracking" "monitoring" "storage" "extraEnv" "extraEnvFrom" "podLabels" "podAnnotations" "extraVolumes" "extraVolumeMounts" "runtimeClassName" "podSpecPatch" "scheduling" "networkPolicy" "podSecurityContext" "securityContext" "serviceAccount" "ttlSecondsAfterFinished" | toJson -}}
{{- end -}}

{{/* Name of volume and claim: a volume's source and a claim's size and volume are immutable, and volumes have no
     namespace. Namespace and release are in the digest as well, because "a-b" + "c" and "a" + "b-c" are two releases. */}}
{{- define "paddle-training.volume" -}}
{{- $own := dict
  "efs-csi" .Values.storage.efsCsi "nfs" .Values.storage.nfs "hostPath" .Values.storage.hostPath -}}
{{- $what := dict
  "namespace" .Release.Namespace "release" .Release.Name "type" .Values.storage.type
  "size" .Values.storage.size "source" (get $own .Values.storage.type) -}}
{{- $prefix := printf "%s-%s" .Release.Namespace .Release.Name | trunc 200 | trimSuffix "-" -}}
{{- printf "%s-%s" $prefix ($what | toJson | sha256sum | trunc 8) -}}
{{- end -}}

{{/* Name of the claim that the pods mount. */}}
{{- define "paddle-training.claim" -}}
{{- if eq .Values.storage.type "existingClaim" -}}
{{- .Values.storage.existingClaim.name -}}
{{- else -}}
{{- include "paddle-training.volume" . -}}
{{- end -}}
{{- end -}}
