{{/* Egress of every pod: DNS and the user's extraEgress. The node mounts the storage, so a pod needs no rule for it. With a
     rule, a program that speaks NFS would be root on the whole file system. */}}
{{- define "paddle-training.egressCommon" -}}
# The address of the DNS servers depends on the cluster, so only the port is restricted.
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Egress for a source or an export. Takes (dict "root" $ "url" <the source or the target>). */}}
{{- define "paddle-training.egressUrl" -}}
{{- if regexMatch "^(https?|s3)://" .url }}
- to: {{- include "paddle.blocks" .root.Values.networkPolicy.sourceCidrs | trim | nindent 4 }}
  ports:
    - {port: 443, protocol: TCP}
    {{- if hasPrefix "http://" .url }}
    - {port: 80, protocol: TCP}
    {{- end }}
{{- end }}
{{- if hasPrefix "s3://" .url }}
# The node's pod identity agent, which returns the credentials of the pods' role.
- to: [{ipBlock: {cidr: 169.254.170.23/32}}]
  ports: [{port: 80, protocol: TCP}]
{{- end }}
{{- end -}}

{{/* Egress for data.source and data.testSource. */}}
{{- define "paddle-training.egressSources" -}}
{{- range list (ternary "https://" .Values.data.source (ne .Values.data.sourceSecret.name "")) .Values.data.testSource -}}
{{- include "paddle-training.egressUrl" (dict "root" $ "url" .) -}}
{{- end -}}
{{- end -}}
