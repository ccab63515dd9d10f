{{/* Each type of storage has what it needs. */}}
{{- define "paddle-training.validate.storage" -}}
{{- $storage := .Values.storage -}}
{{- if eq $storage.type "efs-csi" -}}
{{- if not (regexMatch "^fs-[0-9a-f]{8,40}$" $storage.efsCsi.fileSystemId) -}}
{{- include "paddle-training.fault" (list "storage.efsCsi.fileSystemId" $storage.efsCsi.fileSystemId "the id of an EFS file system, fs-…" "storage.type is efs-csi" "Set the id that aws efs describe-file-systems shows, or another storage.type") -}}
{{- end -}}
{{- if and $storage.efsCsi.accessPointId (not (regexMatch "^fsap-[0-9a-f]{8,40}$" $storage.efsCsi.accessPointId)) -}}
{{- include "paddle-training.fault" (list "storage.efsCsi.accessPointId" $storage.efsCsi.accessPointId "the id of an EFS access point, fsap-…, or empty" "the driver mounts by it" "Set the id that aws efs describe-access-points shows") -}}
{{- end -}}
{{- else if eq $storage.type "nfs" -}}
{{- if not $storage.nfs.server -}}
{{- include "paddle-training.fault" (list "storage.nfs.server" $storage.nfs.server "a server's name or address" "storage.type is nfs" "Set the name that nodes can resolve, such as an EFS mount target's") -}}
{{- end -}}
{{- if not (regexMatch "^/" $storage.nfs.path) -}}
{{- include "paddle-training.fault" (list "storage.nfs.path" $storage.nfs.path "an absolute path" "it is the exported folder" "Begin it with /") -}}
{{- end -}}
{{- else if eq $storage.type "hostPath" -}}
{{- $path := $storage.hostPath.path -}}
{{- if or (not (regexMatch "^/.+" $path)) (has ".." (splitList "/" $path)) -}}
{{- include "paddle-training.fault" (list "storage.hostPath.path" $path "an absolute path below /, without '..'" "storage.type is hostPath" "Set a folder that exists on every node") -}}
{{- end -}}
{{- else if not $storage.existingClaim.name -}}
{{- include "paddle-training.fault" (list "storage.existingClaim.name" $storage.existingClaim.name "the name of a claim" "storage.type is existingClaim" "Name a claim of this namespace whose access mode is ReadWriteMany") -}}
{{- end -}}
{{- if or (not (regexMatch "^/[^/]" .Values.jobPath)) (has ".." (splitList "/" .Values.jobPath)) (regexMatch "^/(work|tmp)(/|$)" .Values.jobPath) -}}
{{- include "paddle-training.fault" (list "jobPath" .Values.jobPath "an absolute path without '..', outside /work and /tmp" "the shared storage is mounted there, and those are the pods' own folders" "Leave it at /home/jobpath") -}}
{{- end -}}
{{- end -}}

{{/* What only the cluster knows. Without one (helm template) look-ups find nothing and nothing is said. */}}
{{- define "paddle-training.validate.cluster" -}}
{{- if eq .Values.storage.type "existingClaim" -}}
{{- $claim := lookup "v1" "PersistentVolumeClaim" .Release.Namespace .Values.storage.existingClaim.name -}}
{{- if and .Values.storage.existingClaim.name $claim -}}
{{- include "paddle-training.validate.claimModes" (list .Values.storage.existingClaim.name $claim.spec.accessModes) -}}
{{- end -}}
{{- end -}}
{{- if .Values.hostPorts -}}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace | default dict -}}
{{- include "paddle-training.validate.podSecurity" (list .Release.Namespace (dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" $namespace)) -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.claimModes" -}}
{{- if not (has "ReadWriteMany" (index . 1)) -}}
{{- include "paddle-training.fault" (list "storage.existingClaim.name" (index . 0) "a claim with access mode ReadWriteMany" (printf "pods on several nodes write to it, and this one has %s" (join ", " (index . 1))) "Make a claim of that mode on shared storage, such as EFS or NFS") -}}
{{- end -}}
{{- end -}}

{{- define "paddle-training.validate.podSecurity" -}}
{{- if has (index . 1) (list "baseline" "restricted") -}}
{{- include "paddle-training.fault" (list "hostPorts" true (printf "false in namespace %s" (index . 0)) (printf "its Pod Security level is %s, which refuses pods with host ports" (index . 1)) (printf "Set hostPorts to false, or: kubectl label namespace %s pod-security.kubernetes.io/enforce=privileged --overwrite" (index . 0))) -}}
{{- end -}}
{{- end -}}
