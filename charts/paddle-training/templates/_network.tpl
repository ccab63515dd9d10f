{{/* Egress of every pod: DNS, its storage, and the user's extraEgress. */}}
{{- define "paddle-training.egressCommon" -}}
# The address of the DNS servers depends on the cluster, so only the port is restricted.
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- if has .Values.storage.type (list "efs-csi" "nfs") }}
- to: {{- include "paddle-training.blocks" .Values.networkPolicy.storageCidrs | trim | nindent 4 }}
  ports: [{port: 2049, protocol: TCP}]
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Egress for a source or an export. Takes (dict "root" $ "url" <the source or the target>). */}}
{{- define "paddle-training.egressUrl" -}}
{{- if regexMatch "^(https?|s3)://" .url }}
- to: {{- include "paddle-training.blocks" .root.Values.networkPolicy.sourceCidrs | trim | nindent 4 }}
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
{{- range list .Values.data.source .Values.data.testSource -}}
{{- include "paddle-training.egressUrl" (dict "root" $ "url" .) -}}
{{- end -}}
{{- end -}}

{{/* CIDRs as peers of a rule, without the node's metadata service, which returns the credentials of the node's role. */}}
{{- define "paddle-training.blocks" -}}
{{- range . }}
- ipBlock:
    cidr: {{ . | quote }}
    {{- if eq . "0.0.0.0/0" }}
    except: [169.254.169.254/32]
    {{- end }}
{{- end }}
{{- end -}}
